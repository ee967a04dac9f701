"""Which results of a packed product stay as they are: columns of it, whose rows lie apart.

PyTorch's functions take any strides, but not all give the same: a view may need rows side by side,
`as_strided` reads memory, a result may get other strides than it had. So the nodes that read a
column run on tensors without data, once more, with the strides that it would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator

from mirage_kernels.matching.packing import ALIGNED
from mirage_kernels.matching.shapes import alike, equal, static
from mirage_kernels.matching.trace import Elementary, Traced, lenient, storage_of, tensors_in

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from mirage_kernels.matching.match import Match

# Functions of these libraries find elements by their strides, but for those that begin so.
_LIBRARIES = ("aten", "prim", "prims", "mirage_kernels")
_OF_MEMORY = ("as_strided", "set_", "resize")


def kept_apart(
    module: fx.GraphModule, packs: Sequence[Sequence[Match]], traced: Traced
) -> frozenset[fx.Node]:
    """Return the results of packed products that all readers take as columns."""
    columns = {root: c for group in packs for root, c in _columns(group, traced).items()}
    fitting = {
        root: column for root, column in columns.items() if _is_same(module, {root: column}, traced)
    }
    # Two at once, for the nodes that read several of them.
    return frozenset(fitting) if _is_same(module, fitting, traced) else frozenset()


def _columns(group: Sequence[Match], traced: Traced) -> dict[fx.Node, Tensor]:
    """Return the columns of a group's product that kernels can read, without data."""
    assert traced.mode is not None
    found, start, total = {}, 0, sum(m.sizes["N"] for m in group)
    for one in group:
        value, rows = traced.values[one.root], one.sizes["N"]
        with lenient(traced.mode), traced.mode:
            whole = torch.empty((*value.shape[:-1], total), dtype=value.dtype, device=value.device)
            if not any(n * value.element_size() % ALIGNED for n in (start, total)):
                found[one.root] = whole.narrow(-1, start, rows)
        start += rows
    return found


def _is_same(module: fx.GraphModule, changed: Mapping[fx.Node, Tensor], traced: Traced) -> bool:
    """Say whether a graph computes the same where nodes have these strides."""
    assert traced.mode is not None
    run = _Again(module, changed, traced)
    with lenient(traced.mode), traced.mode, torch.no_grad(), run.watch:
        return all(run.is_same(node) for node in module.graph.nodes)


class _Watch(Elementary):  # type: ignore[no-untyped-call]
    """Notes whether a function was called on changed memory that may not find its elements."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages, self.is_safe = storages, True

    def called(
        self, func: OpOverload, args: tuple[object, ...], named: Mapping[str, object]
    ) -> object:
        """Run a call, and look at what it reads."""
        name = func.overloadpacket.__name__
        if func.namespace not in _LIBRARIES or name.startswith(_OF_MEMORY):
            given = {storage_of(t) for t in tensors_in([args, named])}
            self.is_safe = self.is_safe and not given & self.storages
        return func(*args, **named)


class _Again(fx.Interpreter):
    """Runs the nodes that read a changed value, or a view of one."""

    def __init__(
        self, module: fx.GraphModule, changed: Mapping[fx.Node, Tensor], traced: Traced
    ) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.before = traced.results
        self.changed: dict[fx.Node, object] = dict(changed)
        self.roots = frozenset(changed)
        self.watch = _Watch({storage_of(t) for t in changed.values()})

    def is_same(self, node: fx.Node) -> bool:
        """Say whether a node does the same; if it makes views of what has changed, note them."""
        if node in self.roots or not any(n in self.changed for n in node.all_input_nodes):
            return True
        if node.op == "output" or isinstance(node.target, HigherOrderOperator):
            return False
        args, named = (fx.node.map_arg(a, self._value) for a in (node.args, node.kwargs))
        try:
            made = getattr(self, node.op)(node.target, args, named)
        except Exception:  # whatever a function says of such strides
            return False
        return self.watch.is_safe and self._is_alike(node, made)

    def _value(self, node: fx.Node) -> fx.node.Argument:
        return self.changed.get(node, self.before.get(node))  # type: ignore[return-value]

    def _is_alike(self, node: fx.Node, made: object) -> bool:
        before = self.before.get(node)
        new, old = [*tensors_in(made)], [*tensors_in(before)]
        if not new or len(new) != len(old):
            return not new and not old and bool(made == before)
        views = [storage_of(t) in self.watch.storages for t in new]
        if any(views):
            self.changed[node] = made
        return all(
            alike(a.shape, b.shape) and (is_view or _same_strides(a, b))
            for a, b, is_view in zip(new, old, views, strict=True)
        )


def _same_strides(one: Tensor, other: Tensor) -> bool:
    """Say whether tensors of one shape lie alike; steps over a single element do not count."""
    steps = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(static(size) == 1 or equal(a, b) for size, a, b in steps)
