"""Formulas of a tile program as Triton: tensors of Triton, where their elements lie, what they are.

A value is a tensor of Triton, its dims in one order throughout a kernel and rounded up to powers of
two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

from mirage_kernels.generator.emit.statements import ELEMENTWISE
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Axis, DType, Phase, parts_of
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES
from mirage_kernels.generator.tiles.program import BlockProgram, Contract, Statement

LEAST_DOT = 16  # rows, columns and depth of a dot product's operands
_TRUTH = {  # truth values are 1 and 0
    "less": "tl.where({0} < {1}, 1.0, 0.0)",
    "both": "tl.where(({0} != 0) & ({1} != 0), 1.0, 0.0)",
    "where": "tl.where({0} != 0, {1}, {2})",
    "last": "{0}",
}
Names = tuple[str, ...]


class Formulas:
    """Writes the formulas of one block program."""

    def __init__(self, program: BlockProgram, symbol: str, writer: Writer) -> None:
        self.program, self.symbol, self.writer = program, symbol, writer
        values = [program.type(v) for v in program.body.values if v not in program.body.outputs]
        self.order = list(dict.fromkeys(d.name for t in values for d in t.dims))
        self.at_hand = set[str]()  # formulas with a variable that still holds
        self.least = self.least_blocks()

    # -- extents -----------------------------------------------------------------------------------

    def least_blocks(self) -> dict[tuple[str, int], int]:
        """Return the least blocks of dims: operands of a dot product are 16 x 16 at least."""
        found = dict[tuple[str, int], int]()
        for s in self.statements:
            if isinstance(s, Contract):
                for names in self.groups(s)[1:]:
                    others = prod(self.size(s, d) for d in names[:-1])
                    key = names[-1], self.size(s, names[-1])
                    found[key] = max(found.get(key, 1), -(-LEAST_DOT // others))
        return found

    def size(self, s: Contract, dim: str) -> int:
        a, b = (self.program.type(x) for x in (s.a, s.b))
        return (a if dim in a.names else b).dim(dim).size

    def groups(self, s: Contract) -> tuple[Names, Names, Names, Names]:
        """Return the batch, row, column and contracted dims of a product."""
        a, b = (self.dims(x) for x in (s.a, s.b))
        batch = tuple(d for d in a if d in b and d != s.over)
        rows = tuple(d for d in a if d not in b)
        return batch, rows, tuple(d for d in b if d not in a), (s.over,)

    def block(self, dim: str, size: int) -> int:
        """Return the elements of a Triton tensor along a dim of so many."""
        return int(max(1 << (size - 1).bit_length(), self.least.get((dim, size), 1)))

    def dims(self, value: str) -> Names:
        """Return the dims of a value in the kernel's order."""
        return tuple(sorted(self.program.type(value).names, key=self.order.index))

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value's Triton tensor."""
        type_ = self.program.type(value)
        return tuple(self.block(d, type_.dim(d).size) for d in self.dims(value))

    def extent(self, dim: str) -> str:
        d = self.program.extents[dim]
        return dim if d.dynamic else str(d.size)

    @cached_property
    def statements(self) -> list[Statement]:
        return [s for said in self.program.statements.values() for s in said]

    @cached_property
    def joined(self) -> tuple[Axis, ...]:
        """Axes whose blocks are one cluster: parts that one program takes in order."""
        return self.program.space.reduced if self.program.statements[Phase.JOINED] else ()

    # -- arguments ---------------------------------------------------------------------------------

    @cached_property
    def tensors(self) -> list[str]:
        """Inputs and outputs of the body that are tensors in device memory."""
        p = self.program
        given = [n.name for n in p.body.inputs if n.out.type.dims and n.name not in p.iotas]
        return [*given, *p.body.outputs]

    @cached_property
    def scalars(self) -> list[str]:
        return [n.name for n in self.program.body.inputs if not n.out.type.dims]

    @cached_property
    def dynamic(self) -> list[str]:
        """Dims whose extents are arguments."""
        return [d.name for d in self.program.extents.values() if d.dynamic]

    @property
    def storage(self) -> str:
        """The narrow dtype, that of the first tensor that has it."""
        types = ((n, self.program.type(n).dtype) for n in self.tensors)
        first = next(n for n, dtype in types if dtype in STORAGE_DTYPES)
        return f"{first}_ptr.dtype.element_ty"

    # -- places ------------------------------------------------------------------------------------

    def local(self, value: str, dim: str) -> int:
        """Return the elements of a block's tile of a value, or of what it stores, along a dim."""
        node = self.program.node(value)
        return self.program.type(node.args[0] if node.op == "output" else value).dim(dim).size

    def index(self, value: str, dim: str, wanted: Names) -> str:
        """Return the coordinates of a value in whole tensors along a dim, to broadcast."""
        p, size = self.program, self.local(value, dim)
        terms = []
        for name in p.offsets[value].get(dim, ()):
            axis = next(a for a in p.space.axes if a.name == name)
            terms.append(f"{name}_index * {axis.tile if axis.dim == dim else size}")
        return " + ".join((*terms, expanded(f"{dim}_{size}", (dim,), wanted)))

    def inside(self, value: str, over: Sequence[str], wanted: Names) -> str:
        """Return the test that elements lie in their tile and tensor, or nothing."""
        p, tests = self.program, list[str]()
        for dim in over:
            size, whole = self.local(value, dim), p.extents.get(dim)
            if self.block(dim, size) != size:
                tests.append(f"({expanded(f'{dim}_{size}', (dim,), wanted)} < {size})")
            limits = [f"({a.name}_index + 1) * {a.tile}" for a in self.ends(value, dim)]
            if whole is not None and (whole.dynamic or whole.size % size):
                limits.append(self.extent(dim))
            place = self.index(value, dim, wanted)
            tests += [f"({place} < {limit})" for limit in limits]
        return " & ".join(tests)

    def ends(self, value: str, dim: str) -> list[Axis]:
        """Return the axes whose part of a dim may end within a step of the loop."""
        axes = self.program.offsets[value].get(dim, ())
        return [a for a in self.program.space.reduced if a.name in axes and "loop" in axes]

    def pointers(self, tensor: str, wanted: Names) -> str:
        """Return where the elements of an input or an output lie."""
        p, terms = self.program, [f"{tensor}_ptr"]
        for d in p.type(tensor).names:
            part = next((a for a in p.space.reduced if parts_of(a.dim) == d), None)
            stored = part is not None and d not in wanted
            place = f"{part.name}_index" if part and stored else self.index(tensor, d, wanted)
            terms.append(f"({place}) * {tensor}_stride_{d}")
        return " + ".join(terms)

    # -- formulas ----------------------------------------------------------------------------------

    def union(self, values: Sequence[str]) -> Names:
        return tuple(sorted({d for v in values for d in self.dims(v)}, key=self.order.index))

    def read(self, value: str, wanted: Names) -> str:
        """Write what a value is computed from, and return it in fp32, to broadcast."""
        return expanded(self.formula(value), self.dims(value), wanted)

    def formula(self, value: str, *, again: bool = False) -> str:
        """Write what computes a value, and return its text; `again` although it has a tile."""
        p = self.program
        if p.is_leaf(value) and not again:
            return self.leaf(value)
        if value in self.at_hand and not again:
            return value
        node, wanted = p.node(value), self.dims(value)
        args = [self.read(a, wanted) for a in node.args]
        table = _TRUTH if node.op in _TRUTH else ELEMENTWISE
        if node.op not in table:
            raise PlanError(f"the Triton table has no op {node.op!r}")
        text = table[node.op].format(*(a if a.isidentifier() else f"({a})" for a in args))
        if again:
            return text
        narrow = self.narrowed(value)
        self.assign(value, f"({text}){narrow}.to(tl.float32)" if narrow else text)
        self.at_hand.add(value)
        return value

    def leaf(self, name: str) -> str:
        p = self.program
        node, type_ = p.node(name), p.type(name)
        if node.op == "const":
            infinite = node.value in (float("inf"), -float("inf"))
            return f"float('{node.value}')" if infinite else repr(float(node.value))
        if node.op == "size":
            return f"({self.extent(node.over)} * 1.0)"
        if name in p.iotas or node.op == "iota":
            (dim,) = type_.names
            return f"({self.index(name, dim, (dim,))}).to(tl.float32)"
        if name in p.tiles:
            return name if p.tiles[name].dtype is DType.FP32 else f"{name}.to(tl.float32)"
        return f"{self.load(name)}.to(tl.float32)" if type_.dims else name

    # -- lines -----

    def load(self, value: str) -> str:
        """Return what reads a tensor: zeros beyond its extents."""
        names = self.dims(value)
        mask = self.inside(value, names, names)
        return f"tl.load({self.pointers(value, names)}{f', mask={mask}, other=0' if mask else ''})"

    def narrowed(self, value: str) -> str:
        """Return what rounds a value to its dtype, that of its tile if it has one."""
        tile = self.program.tiles.get(value)
        narrow = (tile or self.program.type(value)).dtype in STORAGE_DTYPES
        return f".to({self.storage})" if narrow else ""

    def assign(self, name: str, text: str) -> None:
        self.line(f"{name} = {text}")

    def line(self, text: str) -> None:
        self.writer.lines.append(self.writer.unit * self.writer.depth + text)


def expanded(text: str, own: Names, wanted: Names) -> str:
    """Return a tensor indexed so that it broadcasts to the dims `wanted`: `x[None, :]`."""
    if not own or own == wanted:
        return text
    text = text if text.replace("_", "a").isalnum() else f"({text})"
    return f"{text}[{', '.join(':' if d in own else 'None' for d in wanted)}]"
