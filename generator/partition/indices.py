"""What kernels take or write row by row, where an index tensor says: which rows, and how they lie.

A gather is looked through as a view is, on a tensor without memory whose rows lie so far apart that
no stride of others comes near: its dims that an index numbers are known by their strides then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.editing import mutates
from mirage_kernels.generator.frontend.export import has_eight_bits, operator_of
from mirage_kernels.generator.frontend.rows import Rows
from mirage_kernels.generator.ir import Dim
from mirage_kernels.generator.partition.trace import Node, Trace, memory_of
from mirage_kernels.generator.partition.views import Own, in_order, looked_at

if TYPE_CHECKING:
    import torch

Step = dict[str, Any]
FAR = 2**40  # elements between the rows of a tensor that is looked through
MOST_ROWS = 2**31 - 1
INTEGERS = ("int32", "int64")


@dataclass(frozen=True)
class Access:
    """The rows of a tensor along a dim that an index tensor says, read or written by a node."""

    node: Node
    table: Node
    dim: int
    index: Node
    wraps: bool  # negative numbers count from the last row
    value: Node | None = None  # what is written there

    def standing_in(self, trace: Trace, own: Own) -> torch.Tensor:
        """Return what is read or written, a tensor without memory; its rows lie far apart."""
        import torch

        table = looked_at(trace, self.table, own)
        numbers = tuple(map(int, own(self.index).meta["val"].shape))
        far = [FAR * prod(numbers[i + 1 :]) for i in range(len(numbers))]
        shape, strides = [*table.shape], [*table.stride()]
        shape[self.dim : self.dim + 1] = numbers
        strides[self.dim : self.dim + 1] = far
        return torch.empty_strided(shape, strides, device="meta")

    def seen(self, trace: Trace, node: Node, own: Own) -> torch.Tensor:
        """Return a view of what is read, a tensor without memory."""
        return looked_at(trace, node, own, self.standing_in(trace, own))

    def rows(self, trace: Trace, name: str, seen: torch.Tensor) -> Rows:
        """Return how a kernel addresses what `seen` shows; raises RecipeError where it cannot."""
        size = trace.shape(self.table)[self.dim]
        known = size if isinstance(size, int) else MOST_ROWS
        rows = Dim(f"{name}_rows", known, dynamic=not isinstance(size, int))
        dtype = str(self.index.meta["val"].dtype).removeprefix("torch.")
        return Rows(numbered(seen), rows, trace.name(self.index), dtype, self.wraps)


def numbered(seen: torch.Tensor) -> tuple[int, ...]:
    """Return the dims that an index numbers; raises RecipeError where no kernel addresses them."""
    strides = [*map(int, seen.stride())]
    found = tuple(i for i, n in enumerate(strides) if n >= FAR)
    if not found or found != (*range(found[0], found[-1] + 1),):
        raise RecipeError("an index numbers dims that do not lie side by side")
    numbers = [(int(seen.shape[i]), strides[i] // FAR) for i in found]
    beside = [prod(n for n, _ in numbers[i + 1 :]) for i in range(len(numbers))]
    rest = [(n, s) for n, s in zip(seen.shape, strides, strict=True) if s < FAR and n > 1]
    falling = all(a[1] >= b[1] * b[0] for a, b in pairwise(rest))
    behind = prod(seen.shape[found[-1] + 1 :]) > 1
    even = all(n == 1 or s == b for (n, s), b in zip(numbers, beside, strict=True))
    if not (falling and behind and even and all(s > 0 for _, s in rest)):
        raise RecipeError("an index chooses elements of rows, or rows in another order")
    return found


def strides_in_memory(seen: torch.Tensor) -> tuple[int, ...]:
    """Return strides in the order of memory, what an index numbers in the place of the rows."""
    found = numbered(seen)
    strides, inner, count = [*map(int, in_order(seen))], 1, prod(seen.shape[i] for i in found)
    for i in range(found[-1] + 1, len(strides)):
        inner = max(inner, strides[i] * int(seen.shape[i]))
    for i in reversed(found):
        strides[i], inner = inner, inner * int(seen.shape[i])
    return (*(s * inner * count for s in strides[: found[0]]), *strides[found[0] :])


def gather_of(trace: Trace, node: Node) -> Access | None:
    """Return what a node reads by an index, None for a node of another kind."""
    op, args = operator_of(node), node.args
    if op == "embedding" and not node.kwargs:
        return _access(trace, Access(node, args[0], 0, args[1], wraps=False))
    if op == "index_select" and not mutates(node):
        return _access(trace, Access(node, args[0], int(args[1]), args[2], wraps=False))
    if op == "index" and (one := _only(args[1])):
        return _access(trace, Access(node, args[0], *one, wraps=True))
    return None


def write_of(trace: Trace, node: Node) -> Access | None:
    """Return what a node writes by an index into one of its operands, None for another node."""
    op, args = operator_of(node), node.args
    if not mutates(node):
        return None
    if op == "index_copy":
        own = Access(node, args[0], int(args[1]), args[2], wraps=False, value=args[3])
        return _access(trace, own)
    if op == "index_put" and args[3:] in ((), (False,)) and (one := _only(args[1])):
        return _access(trace, Access(node, args[0], *one, wraps=True, value=args[2]))
    return None


def _only(indices: Sequence[Node | None]) -> tuple[int, Node] | None:
    """Return the one index among those of all dims, and its dim."""
    found = [(i, n) for i, n in enumerate(indices) if n is not None]
    return found[0] if len(found) == 1 else None


def _access(trace: Trace, own: Access) -> Access | None:
    """Return an access unless its index is a mask, or something writes over what it takes.

    Kernels write no rows of 8 bits.
    """
    index, table = (n.meta["val"] for n in (own.index, own.table))
    whole = str(index.dtype).removeprefix("torch.") in INTEGERS and index.dim() > 0
    changing = [n for n in trace.nodes if mutates(n) and n is not own.node]
    changed = {memory_of(trace, n.all_input_nodes[0]) for n in changing}
    same = not {memory_of(trace, n) for n in (own.index, own.table)} & changed
    has_bytes = has_eight_bits(table.dtype)
    real = own.value is None if has_bytes else table.is_floating_point()
    if not (whole and same and real):
        return None
    return Access(own.node, own.table, own.dim % table.dim(), own.index, own.wraps, own.value)


def rows_step(trace: Trace, own: Access) -> Step:
    """Return the step in place of a gather: views of it are views of the table's rows."""
    names = (trace.name(n) for n in (own.table, own.index, own.node))
    table, index, result = names
    return {"rows": table, "dim": own.dim, "index": index, "result": result}


def is_addressed(trace: Trace, own: Access, node: Node, owns: Sequence[Own]) -> bool:
    """Say whether a kernel can take a view of what is read where the table has it."""
    try:
        found = {numbered(own.seen(trace, node, one)) for one in owns}
    except (RecipeError, RuntimeError):
        return False
    return len(found) == 1
