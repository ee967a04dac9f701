"""Formulas of a tile program as Triton: tensors of Triton, where their elements lie, what they are.

A value is a tensor of Triton, its dims in one order throughout a kernel. What cuts a dim gives the
tensor's extent a name that the host chooses a power of two for, so that one text serves all shapes:
BLOCK_M along a grid axis, STEP_K in the loop, PART_K in a part of a sum, ALL_K where nothing cuts.
Dims of which a block has one element are no dims of tensors: their index is a scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from mirage_kernels.generator.emit.statements import ELEMENTWISE
from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Axis, DType, parts_of
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.triton_text import enclosed, free, python_lines

_TRUTH = {"less": "{0} < {1}", "both": "{0} & {1}", "where": "tl.where({0}, {1}, {2})"}
GRID, LOOP, PART, ALL = "BLOCK", "STEP", "PART", "ALL"  # what names an extent of a tensor
PLACES = {GRID: "offs", LOOP: "step", PART: "part", ALL: "all"}  # of a tensor's elements
Names = tuple[str, ...]


class Formulas:
    """Writes the formulas of one block program; `single`: dims that the grid cuts into elements."""

    def __init__(self, program: BlockProgram, single: frozenset[str], writer: Writer) -> None:
        self.program, self.single, self.writer = program, single, writer
        values = [program.type(v) for v in program.body.values if v not in program.body.outputs]
        self.order = list(dict.fromkeys(d.name for t in values for d in t.dims))
        self.at_hand = set[str]()  # formulas with a variable that still holds
        self.in_loop = False  # whether lines of the loop are written
        self.rounded: DType | None = None  # the narrow dtype, if something is rounded to it

    # -- extents -----------------------------------------------------------------------------------

    def kind(self, value: str, dim: str) -> str:
        """Return what cuts a dim of a value."""
        axes = self.program.offsets[value].get(dim, ())
        if not axes:
            return ALL
        if "loop" in axes:
            return LOOP
        parted = any(a.name in axes and a.dim == dim for a in self.program.space.reduced)
        return PART if parted else GRID

    def dims(self, value: str) -> Names:
        """Return the dims of a value's tensor in the kernel's order."""
        names = self.program.type(value).names
        return tuple(sorted((d for d in names if self.has(value, d)), key=self.order.index))

    def has(self, value: str, dim: str) -> bool:
        return dim not in self.single or self.kind(value, dim) != GRID

    def block(self, value: str, dim: str) -> str:
        """Return the extent of a value's tensor along a dim."""
        return f"{self.kind(value, dim)}_{dim}"

    def shape(self, value: str) -> Names:
        """Return the shape of a value's tensor."""
        return tuple(self.block(value, d) for d in self.dims(value))

    @cached_property
    def kinds(self) -> list[tuple[str, str]]:
        """Every kind of extent with its dim, of the dims of tensors."""
        p = self.program
        values = [v for v in p.body.values if v not in p.body.outputs]
        found = {(self.kind(v, d), d) for v in values for d in self.dims(v)}
        found |= {(LOOP, p.space.loop.dim)} if p.space.loop else set()
        return sorted(found | {(PART, a.dim) for a in self.parted})

    @property
    def parted(self) -> tuple[Axis, ...]:
        """Axes whose blocks store sums of parts."""
        return self.program.space.reduced

    # -- arguments ---------------------------------------------------------------------------------

    @cached_property
    def tensors(self) -> dict[str, Names]:
        """Tensors in device memory that are read or written, by name, with their dims."""
        p = self.program
        given = [n.name for n in p.body.inputs if n.out.type.dims and n.name not in p.iotas]
        found = {p.tensors[n]: p.type(n).names for n in (*given, *p.body.outputs)}
        return found | {x.by: x.dims for x in p.indexed.values()}

    @cached_property
    def scalars(self) -> list[str]:
        """Inputs without dims."""
        return [n.name for n in self.program.body.inputs if not n.out.type.dims]

    @property
    def storage(self) -> str:
        """The narrow dtype: that of the first tensor that has it, or its name in Triton."""
        p = self.program
        types = ((p.tensors[v], p.type(v).dtype) for v in p.tensors if p.type(v).dims)
        found = (f"{n}_ptr.dtype.element_ty" for n, dtype in types if dtype in STORAGE_DTYPES)
        return next(found, "tl.float16" if self.rounded is DType.FP16 else "tl.bfloat16")

    # -- places ------------------------------------------------------------------------------------

    def place(self, kind: str, dim: str) -> str:
        """Return the variable that holds the indices of elements along a dim."""
        return self.local(f"{PLACES[kind]}_{dim.lower()}")

    def local(self, name: str) -> str:
        """Return a name for what is no value of the program."""
        p = self.program
        taken = {*p.body.values, *p.extents, *p.tensors.values()}
        taken |= {x.by for x in p.indexed.values()}
        taken |= {d.name for x in p.indexed.values() for d in x.counts}
        return free(name, taken)

    def scratch(self, name: str) -> str:
        """Return a name for a part of a formula.

        A name of a tensor before the loop has to keep its type there, so the loop has its own.
        """
        return self.local(f"step_{name}" if self.in_loop else name)

    def part_index(self, dim: str) -> str:
        """Return the variable that holds the number of a block's part of a sum."""
        return f"{self.place(PART, dim)}_index"

    def index(self, value: str, dim: str, wanted: Names) -> str:
        """Return the indices of a value's elements in whole tensors along a dim, to broadcast."""
        name = self.place(self.kind(value, dim), dim)
        return expanded(name, (dim,) if self.has(value, dim) else (), wanted)

    def inside(self, value: str, over: Sequence[str], wanted: Names) -> str:
        """Return the test that elements lie in whole tensors, or nothing."""
        dims = [d for d in over if self.has(value, d)]
        tests = [f"{self.index(value, d, wanted)} < {d}" for d in dims]
        return " & ".join(f"({t})" if len(tests) > 1 else t for t in tests)

    def pointers(self, value: str, wanted: Names) -> str:
        """Return where the elements of an input or an output lie."""
        p, tensor = self.program, self.program.tensors[value]
        terms = [f"{tensor}_ptr"]
        parts = {parts_of(a.dim): self.part_index(a.dim) for a in self.parted}
        made = p.type(p.node(value).args[0]) if p.node(value).op == "output" else p.type(value)
        rows = self.in_rows(value) if value in p.indexed else {}
        for i, d in enumerate(x.name for x in p.memory(value)):
            if d in rows:
                terms.append(f"{rows[d]} * {tensor}_strides[{i}]")
                continue
            index = self.index(value, d, wanted) if d in made.names else parts[d]
            count = p.grouped.get(value, {}).get(d, 1)
            index = f"{index} // {count}" if count > 1 else index
            terms.append(f"{index} * {tensor}_strides[{i}]")
        return " + ".join(terms)

    def row_of(self, value: str) -> str:
        """Return the variable that holds the rows of a value's elements."""
        return self.scratch(f"{value}_row")

    def in_rows(self, value: str) -> dict[str, str]:
        """Return where the rows of a value's elements are, by the dims that count rows."""
        own, row = self.program.indexed[value], self.row_of(value)
        if own.page is None:
            return {own.rows.name: row}
        return {
            d.name: f"({row} {op} {own.page.name})"
            for d, op in zip(own.counts, ("//", "%"), strict=True)
        }

    def known(self, value: str) -> str:
        """Return the test that there are the rows of a value's elements."""
        own, row = self.program.indexed[value], self.row_of(value)
        return f"({row} >= 0) & ({row} < {' * '.join(d.name for d in own.counts)})"

    def rows(self, value: str, wanted: Names, mask: str) -> str:
        """Write which rows an index tensor says; return the test of all, `mask` among it."""
        own = self.program.indexed.get(value)
        if own is None:
            return mask
        indices = (self.index(value, d, wanted) for d in own.dims)
        steps = (f"{at} * {own.by}_strides[{i}]" for i, at in enumerate(indices))
        inside = self.inside(value, own.dims, wanted)
        given = " + ".join((f"{own.by}_ptr", *steps))
        given += f", mask={inside}, other=0" if inside else ""
        row, made = self.row_of(value), f"tl.load({given}).to(tl.int64)"
        if wanted and not any(self.has(value, d) for d in own.dims):
            made += f" + 0 * {self.index(value, wanted[-1], wanted)}"  # masks are no scalars
        self.assign(row, made)
        if own.wraps:
            last = " * ".join(d.name for d in own.counts)
            self.assign(row, f"tl.where({row} < 0, {row} + {last}, {row})")
        return " & ".join([*([enclosed(mask)] if mask else []), self.known(value)])

    # -- formulas ----------------------------------------------------------------------------------

    def union(self, values: Sequence[str]) -> Names:
        """Return the dims of several values."""
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
        if node.op == "last" and not again:
            return self.formula(node.args[0])
        args = [self.read(a, wanted) for a in node.args]
        if node.op in ("both", "where"):
            args = [self.held(a, text) for a, text in zip(node.args, args, strict=True)]
        table = _TRUTH if node.op in _TRUTH else ELEMENTWISE
        if node.op not in table:
            raise PlanError(f"the Triton table has no op {node.op!r}")
        if len(args) == 1 and table[node.op].count("{0}") > 1 and not args[0].isidentifier():
            self.assign(wide := self.scratch("wide"), args[0])
            args = [wide]
        text = table[node.op].format(*map(enclosed, args))
        if again:
            return text
        self.assign(value, text)
        if self.narrowed(value):
            self.assign(value, f"{value}{self.narrowed(value)}.to(tl.float32)")
        self.at_hand.add(value)
        return value

    def held(self, value: str, text: str) -> str:
        """Return the text of a value, of a mask in device memory its truth values."""
        mask = self.program.is_leaf(value) and self.program.type(value).dtype is DType.BOOL
        return f"{text} != 0" if mask else text

    def leaf(self, name: str) -> str:
        """Return the text of a value that is at hand, in fp32."""
        p = self.program
        node, type_ = p.node(name), p.type(name)
        whole = type_.dtype is DType.INT32
        if node.op == "const":
            return f"{int(node.value)}" if whole else number(node.value)
        if node.op == "size":
            return node.over if whole else f"{node.over} * 1.0"
        if name in p.iotas or node.op == "iota":
            (dim,) = type_.names
            return f"{self.index(name, dim, (dim,))}.to({'tl.int32' if whole else 'tl.float32'})"
        if name in p.tiles:
            kept = p.tiles[name].dtype in (DType.FP32, DType.INT32)
            return name if kept else f"{name}.to(tl.float32)"
        if type_.dims and name not in self.at_hand:
            self.assign(name, self.load(name))
            self.at_hand.add(name)
        return f"{name}.to(tl.float32)" if type_.dims and not whole else name

    # -- lines -------------------------------------------------------------------------------------

    def load(self, value: str) -> str:
        """Return what reads a tensor: zeros beyond its extents."""
        names = self.dims(value)
        mask = self.rows(value, names, self.inside(value, names, names))
        more, own = f", mask={mask}, other=0" if mask else "", self.program.indexed.get(value)
        read = f"tl.load({self.pointers(value, names)}{more})"
        if own is None or not own.unknown_is_nan:
            return read
        self.assign(self.scratch(f"{value}_read"), read)
        return f'tl.where({self.known(value)}, {self.scratch(f"{value}_read")}, float("nan"))'

    def narrowed(self, value: str) -> str:
        """Return what rounds a value to its dtype, that of its tile if it has one."""
        tile = self.program.tiles.get(value)
        dtype = (tile or self.program.type(value)).dtype
        if dtype not in STORAGE_DTYPES:
            return ""
        self.rounded = dtype
        return f".to({self.local('storage')})"

    def assign(self, name: str, text: str) -> None:
        """Write an assignment."""
        self.line(f"{name} = {text}")

    def line(self, text: str) -> None:
        """Write a line of Python."""
        self.writer.lines += [
            self.writer.unit * self.writer.depth + row
            for row in python_lines(text, self.writer.room)
        ]


def expanded(text: str, own: Names, wanted: Names) -> str:
    """Return a tensor indexed so that it broadcasts to the dims `wanted`: `x[None, :]`."""
    if not own or own == wanted:
        return text
    return f"{enclosed(text)}[{', '.join(':' if d in own else 'None' for d in wanted)}]"


def number(value: float) -> str:
    """Return a number as formatted Python has it."""
    if value in (float("inf"), -float("inf")):
        return f'float("{value}")'
    return repr(float(value)).replace("e+", "e")
