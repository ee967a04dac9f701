"""The Triton writer: all kernels of a muGraph's tile programs as one Python module.

A tile is a tensor of Triton, its dims in one order throughout a kernel and rounded up to powers of
two; Triton places it, and needs no barriers. Blocks of a cluster become steps of a loop over parts,
because Triton has no clusters. Programs run on the CPU under TRITON_INTERPRET=1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from mirage_kernels.generator.emit.writer import Writer
from mirage_kernels.generator.ir import Axis, DType, Graph, Phase, TensorType, parts_of
from mirage_kernels.generator.tiles.program import (
    Add,
    BlockProgram,
    Clear,
    Combine,
    Contract,
    Fill,
    Load,
    Reduce,
    Scale,
    Spill,
    Statement,
    Store,
)
from mirage_kernels.generator.tiles.triton_formulas import Formulas, Names, expanded

DTYPES = {
    DType.FP16: "torch.float16",
    DType.BF16: "torch.bfloat16",
    DType.FP32: "torch.float32",
    DType.INT32: "torch.int32",
}


def emit_triton(graph: Graph, programs: Sequence[BlockProgram], name: str) -> str:
    """Return a Python module with a function `name` from a muGraph's inputs to its results.

    Inputs are torch tensors of any strides in the graph's order, or floats where they have no dims;
    an optional one may be None. Raises PlanError for an op that Triton's table lacks.
    """
    w = Writer(unit="    ")
    w.write("import torch", "import triton", "import triton.language as tl")
    kernels = [_Kernel(p, f"_{name}_{i}", w) for i, p in enumerate(programs)]
    for kernel in kernels:
        w.write("", "")
        kernel.write()
    w.write("", "")
    _Launcher(graph, kernels, w).write(name)
    return w.text()


class _Kernel(Formulas):
    """One block program as a function of Triton."""

    # -- the kernel --------------------------------------------------------------------------------

    def write(self) -> None:
        p, w = self.program, self.writer
        strides = [f"{n}_stride_{d}" for n in self.tensors for d in p.type(n).names]
        w.line("@triton.jit")
        arguments = [f"{n}_ptr" for n in self.tensors] + strides + self.scalars + self.dynamic
        w.call(f"def {self.symbol}(", arguments, "):")
        w.depth += 1
        w.line("program = tl.program_id(0).to(tl.int64)")
        self.indices("program", [a for a in p.space.grid if a not in self.joined])
        for dim, size in sorted(self.coordinates()):
            w.line(f"{dim}_{size} = tl.arange(0, {self.block(dim, size)}).to(tl.int64)")
        if self.joined:
            self.parts()
        else:
            self.alone()
        w.depth -= 1

    def coordinates(self) -> set[tuple[str, int]]:
        p = self.program
        types = (p.type(v) for v in p.body.values if v not in p.body.outputs)
        return {(d.name, d.size) for t in types for d in t.dims}

    def indices(self, number: str, axes: Sequence[Axis]) -> None:
        """Write the index along each axis of a block's number."""
        for i, axis in enumerate(axes):
            last = i == len(axes) - 1
            self.writer.line(
                f"{axis.name}_index = {number}" + (f" % {self.count(axis)}" * (not last))
            )
            if not last:
                self.writer.line(f"{number} = {number} // {self.count(axis)}")

    def count(self, axis: Axis) -> str:
        return f"tl.cdiv({self.extent(axis.dim)}, {axis.tile})"

    def parts(self) -> None:
        """Write the loop over the blocks of a cluster; the last has what all made together."""
        w, said = self.writer, self.program.statements[Phase.JOINED]
        for s in said:
            if isinstance(s, Combine):
                w.line(f"{s.tile}_total = {self.full(s.tile, 0.0)}")
                if s.peak:
                    w.line(f"{s.tile}_peak = {self.full(s.peak, -float('inf'))}")
        w.line(f"parts = {' * '.join(map(self.count, self.joined))}")
        with w.block("for part_number in range(parts):", ""):
            w.line("part = tl.cast(part_number, tl.int64)")
            self.indices("part", self.joined)
            self.alone()
            for s in said:
                if isinstance(s, Combine):
                    self.combine(s)
            with w.block("if part_number == parts - 1:", ""):
                self.phase(s for s in said if not isinstance(s, Combine))

    def alone(self) -> None:
        """Write what a block does by itself."""
        said, loop, w = self.program.statements, self.program.space.loop, self.writer
        self.phase(said[Phase.BEFORE])
        if loop is not None:
            length = self.extent(loop.dim)
            for axis in self.program.space.reduced:
                if axis.dim == loop.dim:
                    length = f"min({axis.tile}, {length} - {axis.name}_index * {axis.tile})"
            with w.block(f"for step in range(tl.cdiv({length}, {loop.tile})):", ""):
                w.line("loop_index = tl.cast(step, tl.int64)")
                self.phase(said[Phase.LOOP])
        self.phase(said[Phase.AFTER])

    def phase(self, said: Iterable[Statement]) -> None:
        writers: dict[type[Statement], Callable[..., None]] = {
            Load: lambda s: self.assign(s.value, self.load(s.value)),
            Fill: self.fill,
            Clear: lambda s: self.assign(s.target, self.full(s.target, s.value)),
            Reduce: self.reduce,
            Add: self.add,
            Scale: self.scale,
            Contract: self.contract,
            Store: self.store,
            Spill: lambda s: self.round(s.tile),
        }
        self.at_hand.clear()
        for s in said:
            if type(s) in writers:  # barriers and moves within a block are Triton's own
                writers[type(s)](s)
                for name in list(self.at_hand):
                    if {*s.writes} & {*self.program.leaves(name)}:
                        self.at_hand.discard(name)

    # -- statements --------------------------------------------------------------------------------

    def full(self, value: str, number: float) -> str:
        text = f"float('{number}')" if number in (float("inf"), -float("inf")) else repr(number)
        return f"tl.full({self.shape(value)}, {text}, tl.float32)"

    def fill(self, s: Fill) -> None:
        made = self.formula(s.value, again=True)
        users = [u for u in self.program.body.users(s.value) if u.op == "contract"]
        over = list(dict.fromkeys((*s.ends, *(u.over for u in users))))
        mask = self.inside(s.value, over, self.dims(s.value))
        made = f"tl.where({mask}, {made}, 0.0)" if mask else made
        self.assign(s.value, f"({made}){self.narrowed(s.value)}")

    def reduce(self, s: Reduce) -> None:
        values = [s.value, *([s.other] if s.other else [])]
        wanted = self.union(values)
        made = " * ".join(self.read(v, wanted) for v in values)
        first = next(v for v in values if s.over in self.dims(v))
        mask = self.inside(first, [s.over], wanted)
        identity = "float('-inf')" if s.op == "max" else "0.0"
        made = f"tl.where({mask}, {made}, {identity})" if mask else made
        made = f"tl.{s.op}({made}, axis={wanted.index(s.over)})"
        if not s.carried:
            return self.assign(s.tile, f"({made}){self.narrowed(s.tile)}")
        if s.op == "sum":
            return self.assign(s.tile, f"{self.scaled(s.tile, s.factor)} + {made}")
        self.assign(f"{s.tile}_before", s.tile)
        self.assign(s.tile, f"tl.maximum({s.tile}, {made})")
        if s.rescale:
            factor = f"tl.exp({s.tile}_before - {s.tile})"
            self.assign(s.rescale, f"tl.where({s.tile} == float('-inf'), 1.0, {factor})")
        return None

    def round(self, tile: str) -> None:
        """Write the rounding of sums to their tile's dtype."""
        if self.narrowed(tile):
            self.assign(tile, f"{tile}{self.narrowed(tile)}")

    def scaled(self, name: str, factor: str) -> str:
        if not factor:
            return name
        own = self.factor_dims(factor)
        return f"{name} * {expanded(factor, own, self.dims(name))}"

    def factor_dims(self, factor: str) -> Names:
        return tuple(sorted(self.program.tiles[factor].names, key=self.order.index))

    def add(self, s: Add) -> None:
        self.assign(
            s.tile, f"{self.scaled(s.tile, s.factor)} + {self.read(s.value, self.dims(s.tile))}"
        )

    def scale(self, s: Scale) -> None:
        self.assign(s.fragment, self.scaled(s.fragment, s.factor))

    def contract(self, s: Contract) -> None:
        """Write a product of operands as [batch, rows, depth] and [batch, depth, columns]."""
        batch, rows, columns, over = self.groups(s)
        a = self.flat(s.a, (batch, rows, over))
        b = self.flat(s.b, (batch, over, columns))
        made, order = f"tl.dot({a}, {b})", (*batch, *rows, *columns)
        shape = [self.block(d, self.size(s, d)) for d in order]
        wanted = self.dims(s.fragment)
        if len(shape) > 2:
            made = f"tl.reshape({made}, {tuple(shape)})"
        if order != wanted:
            made = f"tl.permute({made}, {tuple(order.index(d) for d in wanted)})"
        self.assign(s.fragment, f"{s.fragment} + {made}")

    def flat(self, value: str, groups: Sequence[Names]) -> str:
        order, own = [d for g in groups for d in g], self.dims(value)
        text, blocks = value, dict(zip(own, self.shape(value), strict=True))
        if order != list(own):
            text = f"tl.permute({text}, {tuple(own.index(d) for d in order)})"
        shape = tuple(prod(blocks[d] for d in g) for g in groups if g or g is not groups[0])
        if shape != tuple(blocks[d] for d in order):
            text = f"tl.reshape({text}, {shape})"
        return text

    def combine(self, s: Combine) -> None:
        """Add a part's value to the total of the parts so far, both relative to one peak."""
        value, total = self.read(s.value, self.dims(s.tile)), f"{s.tile}_total"
        if s.peak:
            peak, own, wanted = f"{s.tile}_peak", self.dims(s.peak), self.dims(s.tile)
            self.assign(f"{s.tile}_before", peak)
            now = self.read(s.peak, own)
            self.assign(peak, f"tl.maximum({peak}, {now})")
            for name, old in (("rescale", f"{s.tile}_before"), ("weight", now)):
                none = f"{old} == float('-inf')"
                self.assign(f"{s.tile}_{name}", f"tl.where({none}, 0.0, tl.exp({old} - {peak}))")
            weight = expanded(f"{s.tile}_weight", own, wanted)
            value = f"tl.where({weight} == 0, 0.0, {value} * {weight})"
            total = f"{total} * {expanded(f'{s.tile}_rescale', own, wanted)}"
        self.assign(f"{s.tile}_total", f"{total} + {value}")
        self.assign(s.tile, f"{s.tile}_total")

    def store(self, s: Store) -> None:
        own = self.dims(s.value)
        mask = self.inside(s.output, own, own)
        value = f"{self.read(s.value, own)}.to({s.output}_ptr.dtype.element_ty)"
        given = f"{value}, mask={mask}" if mask else value
        self.line(f"tl.store({self.pointers(s.output, own)}, {given})")


class _Launcher:
    """The function that allocates a muGraph's tensors and launches its kernels."""

    def __init__(self, graph: Graph, kernels: Sequence[_Kernel], writer: Writer) -> None:
        self.graph, self.kernels, self.writer = graph, kernels, writer

    def write(self, name: str) -> None:
        w, g = self.writer, self.graph
        w.call(f"def {name}(", [n.name for n in g.inputs], "):")
        w.depth += 1
        w.line(f'"""Return {", ".join(g.outputs)}."""')
        tensors = [n for n in g.inputs if n.out.type.dims]
        device = next(n.name for n in tensors if not n.optional)
        for dim in dict.fromkeys(d.name for n in tensors for d in n.out.type.dims):
            node = min((n for n in tensors if dim in n.out.type.names), key=lambda n: n.optional)
            w.line(f"{dim} = {node.name}.shape[{node.out.type.names.index(dim)}]")
        for n in (n for n in tensors if n.optional):
            with w.block(f"if {n.name} is None:", ""):
                kind = f"dtype={self.dtype(n.out.type, device)}, device={device}.device"
                w.line(f"{n.name} = torch.zeros((), {kind}).expand({', '.join(n.out.type.names)})")
        for kernel in self.kernels:
            self.launch(kernel, device)
        w.line(f"return {', '.join(g.outputs)}")
        w.depth -= 1

    def dtype(self, type_: TensorType, device: str) -> str:
        first = self.graph.values[device].type.dtype
        return f"{device}.dtype" if type_.dtype is first else DTYPES[type_.dtype]

    def launch(self, kernel: _Kernel, device: str) -> None:
        p, w = kernel.program, self.writer
        for axis in (a for a in p.space.reduced if a not in kernel.joined):
            w.line(f"{parts_of(axis.dim)} = triton.cdiv({axis.dim}, {axis.tile})")
        for out in p.body.outputs:
            type_ = self.graph.values[p.tensors[out]].type
            shape = ", ".join(type_.names)
            w.line(
                f"{p.tensors[out]} = torch.empty("
                f"({shape},), dtype={self.dtype(type_, device)}, device={device}.device)"
            )
        axes = [a for a in p.space.grid if a not in kernel.joined]
        grid = " * ".join(f"triton.cdiv({a.dim}, {a.tile})" for a in axes) or "1"
        given = [p.tensors[n] for n in kernel.tensors]
        given += [
            f"{p.tensors[n]}.stride({i})"
            for n in kernel.tensors
            for i in range(len(p.type(n).names))
        ]
        given += [p.tensors[n] for n in kernel.scalars] + kernel.dynamic
        w.call(f"{kernel.symbol}[({grid},)](", given, ")")
