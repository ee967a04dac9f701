"""From positional programs to graphs with named dims: the one entry of everything in this folder.

The program is read again and again: each reading may find that two dims are one, or that a dim
falls into factors; the reading that finds nothing new makes the graph. In a block graph a grid axis
may cut different dims of different inputs into equally many tiles, and what it cuts may consist of
several factors: it becomes one axis of the graph per factor.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_kernels.generator import ir
from mirage_kernels.generator.errors import GraphError, OneDimError
from mirage_kernels.generator.frontend.inner_exps import with_inner_exps
from mirage_kernels.generator.frontend.positional.dims import (
    LOOP,
    Cut,
    Factors,
    Refined,
    Row,
    Scope,
    Tile,
)
from mirage_kernels.generator.frontend.positional.ops import lowered, only_values
from mirage_kernels.generator.frontend.positional.program import (
    AXES,
    NOWHERE,
    Program,
    Step,
    Tensor,
)
from mirage_kernels.generator.ir.infer import extents_of

InputDim = tuple[Tensor, int]
Layout = tuple[tuple[str, ...], ...]  # names of the dims that each positional dim consists of


@dataclass(frozen=True)
class Lowered:
    """A program's graph, and which of its dims each positional dim of inputs and results is."""

    graph: ir.Graph
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]

    @property
    def shapes(self) -> list[list[int]]:
        """Positional extents of the inputs, then of the results."""
        sizes, layouts = sizes_of(self.graph), (*self.inputs, *self.outputs)
        return [[prod(sizes[part] for part in row) for row in layout] for layout in layouts]


def flat(layout: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the dims of a tensor in positional order."""
    return tuple(name for row in layout for name in row)


def sizes_of(graph: ir.Graph) -> dict[str, int]:
    """Return the extent of every dim of a kernel graph's tensors."""
    return extents_of([value.type for value in graph.values.values()])


def lower(program: Program, shared: Iterable[Sequence[InputDim]] = ()) -> Lowered:
    """Return a program's checked graph; raise GraphError for what has no meaning in named dims.

    Dims of inputs that are `shared` are one dim, whether the program lets them meet or not.
    """
    factors = Factors()
    for dims in shared:
        factors.share([(tensor.guid, at) for tensor, at in dims], dims[0][0].dims[dims[0][1]])
    while True:  # ends: a refinement joins two factors or splits one into smaller ones
        with contextlib.suppress(Refined):
            factors.names = _roles(_read(program, factors).graph)
            made = _read(program, factors)
            return replace(made, graph=with_inner_exps(made.graph))


def _roles(graph: ir.Graph) -> dict[str, str]:
    """Return names for dims after what products of matrices do with them, as in BLAS.

    M and N are rows and columns, K is summed along, B what both operands have; D are other dims. Of
    one letter they are numbered, and so are the factors of rows or columns.
    """
    roles: dict[str, str] = {}
    used: Counter[str] = Counter()

    def note(letter: str, *dims: str) -> None:
        if all(dim in roles for dim in dims):
            return
        used[letter] += 1
        base = letter if used[letter] == 1 else f"{letter}{used[letter]}"
        for i, dim in enumerate(dims):
            roles.setdefault(dim, base if len(dims) == 1 else f"{base}_{i}")

    for level in (graph, *(n.body for n in graph.blocks if n.body)):
        for node in level.of("contract"):
            a, b = (level.values[arg].type.names for arg in node.args)
            for dim in (d for d in a if d in b and d != node.over):
                note("B", dim)
            note("M", *(d for d in a if d not in b))
            note("K", node.over)
            note("N", *(d for d in b if d not in a))
    for dim in sizes_of(graph):
        note("D", dim)
    return roles


def _read(program: Program, factors: Factors) -> Lowered:
    scope = Scope(ir.Builder(ir.Level.KERNEL), factors)
    found: dict[int, Tile] = {}
    for step in program.steps:
        args = [found[a] for a in step.args]
        if step.op == "input":
            made = [_program_input(scope, step.outs[0], len(found) + 1)]
        elif step.block is not None:
            storage = program.tensors[step.args[0]].dtype
            made = _Block(step.block, scope, storage).applied(args)
        else:
            made = lowered(scope, step, args)
        found.update(zip((t.guid for t in step.outs), made, strict=True))
    inputs, outputs = (
        tuple(tuple(tuple(map(factors.name, row)) for row in found[t.guid].rows) for t in tensors)
        for tensors in (program.inputs, program.outputs)
    )
    results = [found[t.guid].name for t in program.outputs]
    for tile in (found[t.guid] for t in program.outputs):
        row = [f for each in tile.rows for f in each]
        if len(scope.held(tile.name, row)) < len(row):
            raise GraphError(
                f"a result has the dims {[*map(factors.extent, tile.rows)]} by broadcasting alone",
                "return it without the dims that nothing varies along",
            )
    return Lowered(ir.check(scope.builder.graph(results)), inputs, outputs)


def _program_input(scope: Scope, tensor: Tensor, number: int) -> Tile:
    factors = scope.factors
    rows = tuple(factors.of_input(tensor.guid, i, n) for i, n in enumerate(tensor.dims))
    outermost_first = sorted(range(tensor.num_dims), key=lambda i: (-tensor.layout[i], i))
    stored = [f for i in outermost_first for f in rows[i]]
    if len(set(stored)) < len(stored):
        raise OneDimError(
            f"the program makes two dims of input {number}, {list(tensor.dims)}, one and the same",
            "a product of a square tensor with itself has no named form yet",
        )
    type_ = ir.TensorType(
        tuple(ir.Dim(factors.name(f), factors.sizes[f]) for f in stored), tensor.dtype
    )
    return Tile(scope.builder.input(f"in_{len(scope.builder.nodes) + 1}", type_), rows)


class _Block:
    """One block graph on its way into named dims, applied to tensors of a kernel graph.

    `slots` are its grid axes, factor by factor; `storage` the element type of what it stores.
    """

    def __init__(self, block: Program, outside: Scope, storage: ir.DType) -> None:
        assert block.frame is not None
        self.block, self.frame, self.storage = block, block.frame, storage
        self.outside, self.factors = outside, outside.factors
        self.slots: list[tuple[str, int]] = []

    def applied(self, operands: Sequence[Tile]) -> list[Tile]:
        """Add the kernel and return its results."""
        steps, factors, outside = self.block.of("input"), self.factors, self.outside.builder
        cuts = [self.cuts_of(s, o) for s, o in zip(steps, operands, strict=True)]
        self.agree(cuts)
        axes: dict[str, list[ir.Axis]] = {}
        for axis in (*AXES, LOOP):
            for i, cut in enumerate(next(_rows_along(axis, cuts), [])):  # of the first it cuts
                name = axis if i == 0 else f"{axis}_{i + 1}"
                tile = factors.sizes[cut.factor] // cut.count
                axes.setdefault(axis, []).append(ir.Axis(name, factors.name(cut.factor), tile))
        self.slots = [(axis, i) for axis in AXES for i in range(len(axes.get(axis, [])))]
        space = ir.Space(tuple(axes[a][i] for a, i in self.slots), *axes.get(LOOP, [])[:1])
        loop_cuts = tuple(c for of_input in cuts for c in of_input if c.axis == LOOP)
        scope = Scope(ir.Builder(ir.Level.BLOCK, space), factors, self.frame.loop_range, loop_cuts)
        extents = extents_of([outside.types[o.name] for o in operands])
        found = {
            step.outs[0].guid: self.input(scope, replace(operand, cuts=tuple(of_input)), extents)
            for step, operand, of_input in zip(steps, operands, cuts, strict=True)
        }
        for step in self.block.steps:
            if step.op not in ("input", "output"):
                made = lowered(scope, step, [found[a] for a in step.args])
                found.update(zip((t.guid for t in step.outs), made, strict=True))
        stored = [self.output(scope, found[s.args[0]], s) for s in self.block.of("output")]
        body = ir.with_precision(scope.builder.graph([s.name for s in stored]), self.storage)
        names = [outside.free_name(s.name.removesuffix("_stored")) for s in stored]
        outs = tuple(
            ir.Value(name, body.values[s.name].type) for name, s in zip(names, stored, strict=True)
        )
        outside.add(ir.Node("block", tuple(o.name for o in operands), outs, body=body))
        return [Tile(name, s.rows) for name, s in zip(names, stored, strict=True)]

    def cuts_of(self, step: Step, operand: Tile) -> list[Cut]:
        wanted = self.frame.cuts(step.maps, f"the input map {step.maps}")
        if step.dim != NOWHERE and self.frame.loop_range > 1:
            wanted.append((LOOP, step.dim, self.frame.loop_range))
        cuts: list[Cut] = []
        for axis, dim, count in wanted:
            cuts += self.cut_row(operand.rows[dim], Cut(NOWHERE, axis, count), cuts)
        return cuts

    def cut_row(self, row: Row, wanted: Cut, before: Sequence[Cut]) -> list[Cut]:
        """Cut a row of factors into `wanted.count` parts, from the outermost factor on."""
        left, found = wanted.count, []
        taken = {c.factor: c for c in before}
        why = f"the {wanted.axis} axis cuts {self.factors.extent(row)} into {wanted.count}"
        for factor in row:
            size = self.factors.sizes[factor]
            if left == 1:
                break
            if factor in taken:  # a grid axis has cut it: the loop cuts what is in a part
                if taken[factor].count != size:
                    self.factors.split(factor, taken[factor].count, why)
                continue
            if left % size and size % left:
                self.factors.split(factor, left, why)
            count = min(left, size)
            found.append(Cut(factor, wanted.axis, count))
            left //= count
        if wanted.axis == LOOP and len(found) > 1:
            raise GraphError(
                f"{why}, but other operators split that dim at other places",
                "choose a forloop_range that divides how the dim is split elsewhere",
            )
        return found

    def agree(self, cuts: Sequence[Sequence[Cut]]) -> None:
        """Make every axis cut the same counts in the same order in all inputs."""
        for axis in (*AXES, LOOP):
            rows = [*_rows_along(axis, cuts)]
            for mine, theirs in (pair for o in rows[1:] for pair in zip(rows[0], o, strict=False)):
                if mine.count != theirs.count:
                    small, large = sorted((mine, theirs), key=lambda c: c.count)
                    why = f"the {axis} axis of two inputs"
                    if self.factors.sizes[large.factor] != large.count:
                        self.factors.split(large.factor, large.count, why)
                    self.factors.split(large.factor, small.count, why)

    def maps(self, tile: Tile) -> tuple[str | None, ...]:
        cuts = [tile.along(axis)[i : i + 1] for axis, i in self.slots]
        return tuple(self.factors.name(c[0].factor) if c else None for c in cuts)

    def input(self, scope: Scope, tile: Tile, extents: dict[str, int]) -> Tile:
        loop, builder, whole = tile.along(LOOP), scope.builder, self.outside.builder.types
        name = builder.free_name(f"{tile.name}_tile" if tile.cuts else tile.name)
        cut = self.factors.name(loop[0].factor) if loop else None
        out = ir.Value(name, whole[tile.name])
        node = ir.Node("input", (), (out,), cuts=self.maps(tile), loop_cut=cut)
        assert builder.space is not None
        type_ = ir.tile_type(node, out.type, builder.space, extents)
        builder.add(replace(node, outs=(ir.Value(name, type_),)))
        one = {c.factor for c in tile.cuts if scope.is_whole(c)}  # along which it has one element
        rows = tuple(tuple(f for f in row if f not in one) for row in tile.rows)
        return Tile(name, rows, tile.cuts, looped=bool(loop))

    def output(self, scope: Scope, tile: Tile, step: Step) -> Tile:
        only_values([tile], "new_output")
        what = f"the output map {step.maps}"
        if tile.looped and self.frame.loop_range > 1:
            raise GraphError(
                f"{what} stores a value of one iteration",
                "accumulate it over the loop first: forloop_accum",
            )
        rows = [list(row) for row in tile.rows]
        placed = {axis: dim for axis, dim, _ in self.frame.cuts(step.maps, what)}
        for axis in AXES:
            self.place(tile, axis, placed.get(axis), rows)
        dims = {d.name: d for d in scope.builder.types[tile.name].dims}
        full = tuple(
            replace(dims[self.factors.name(f)], size=self.factors.sizes[f])
            for row in rows
            for f in row
        )
        name = scope.builder.free_name(f"{tile.name}_stored")
        value = ir.Value(name, ir.TensorType(full, self.storage))
        scope.builder.add(ir.Node("output", (tile.name,), (value,), cuts=self.maps(tile)))
        return Tile(name, tuple(tuple(row) for row in rows))

    def place(self, tile: Tile, axis: str, dim: int | None, rows: list[list[int]]) -> None:
        """Put what an axis cuts of a tile at the front of the dim where its blocks go."""
        cuts, blocks = tile.along(axis), self.frame.grid[AXES.index(axis)]
        if dim is None:
            if cuts:
                raise GraphError(
                    f"the {blocks} blocks along {axis} hold different values, the output map "
                    "stores all of them at one place",
                    "let the output map say which dim they lie along",
                )
            return
        if not cuts:
            raise GraphError(
                f"the {blocks} blocks along {axis} hold the same values, the output map lays them "
                f"side by side along dim {dim}",
                "let the output map of this axis be -1, or cut an input by it",
            )
        parts = [c.factor for c in cuts]
        partly = [c for c in cuts if c.count != self.factors.sizes[c.factor]]
        if not partly:
            rows[dim][:0] = parts
        elif rows[dim][:1] != parts:
            for cut in partly:
                self.factors.split(cut.factor, cut.count, f"the output map of axis {axis}")


def _rows_along(axis: str, cuts: Sequence[Sequence[Cut]]) -> Iterator[list[Cut]]:
    rows = ([c for c in of_input if c.axis == axis] for of_input in cuts)
    return (row for row in rows if row)
