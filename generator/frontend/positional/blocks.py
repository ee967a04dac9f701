"""Block graphs in named dims: what each grid axis and the loop cut, then their nodes.

A grid axis may cut different dims of different inputs into equally many tiles, and what it cuts
may consist of several factors: it becomes one axis of the graph per factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.dims import (
    LOOP,
    Cut,
    Factor,
    Factors,
    Row,
    Scope,
    Tile,
    only_values,
)
from mirage_kernels.generator.frontend.positional.ops import lowered
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.frontend.positional.steps import AXES, NOWHERE, Frame, Step, cut_dims
from mirage_kernels.generator.ir import (
    Axis,
    Builder,
    DType,
    Graph,
    Level,
    Node,
    Space,
    TensorType,
    Value,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.ir.infer import extents_of

Types = Mapping[str, TensorType]


@dataclass
class BlockLowering:
    """One block graph on its way into named dims; `slots` are its grid axes, factor by factor."""

    block: Program
    factors: Factors
    names: Callable[[Factor], str]
    storage: DType
    slots: list[tuple[str, int]] = field(default_factory=list)

    @property
    def frame(self) -> Frame:
        """Grid and loop."""
        assert self.block.frame is not None
        return self.block.frame

    def run(self, operands: Sequence[Tile], types: Types) -> tuple[Graph, list[Tile]]:
        """Return the body and its results: their values in the body, the factors of their dims."""
        inputs = self.block.of("input")
        cuts = [self.cuts_of(s, o) for s, o in zip(inputs, operands, strict=True)]
        self.agree(cuts)
        axes = {
            axis: next(iter(_rows_along(axis, cuts)), [])  # of the first input that it cuts
            for axis in (*AXES, LOOP)
        }
        self.slots = [(a, i) for a in AXES for i in range(len(axes[a]))]
        grid = tuple(self.axis(axes[a][i], i) for a, i in self.slots)
        loop = self.axis(axes[LOOP][0], 0) if axes[LOOP] else None
        builder = Builder(Level.BLOCK, Space(grid, loop))
        loop_cuts = tuple(c for of_input in cuts for c in of_input if c.axis == LOOP)
        scope = Scope(builder, self.factors, self.names, self.frame.loop_range, loop_cuts)
        found = {}
        extents = extents_of([types[o.name] for o in operands])
        for step, operand, of_input in zip(inputs, operands, cuts, strict=True):
            whole = {c.factor for c in of_input if c.count == self.factors.sizes[c.factor]}
            rows = tuple(tuple(f for f in row if f not in whole) for row in operand.rows)
            tile = Tile(operand.name, rows, tuple(of_input))
            name = self.input(builder, tile, types[operand.name], extents)
            found[step.outs[0].number] = replace(tile, name=name, looped=bool(tile.along(LOOP)))
        compute(scope, self.block.steps, found)
        stored = [self.output(scope, found[s.args[0]], s) for s in self.block.of("output")]
        graph = builder.graph([s.name for s in stored])
        return with_precision(graph, self.storage), stored

    def cuts_of(self, step: Step, operand: Tile) -> list[Cut]:
        """Return how the grid axes and the loop cut the factors of an input."""
        wanted = cut_dims(step.maps, self.frame.grid, f"the input map {step.maps}")
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
            first, *others = _rows_along(axis, cuts) or [[]]
            for mine, theirs in (pair for o in others for pair in zip(first, o, strict=False)):
                if mine.count != theirs.count:
                    small, large = sorted((mine, theirs), key=lambda c: c.count)
                    why = f"the {axis} axis of two inputs"
                    if self.factors.sizes[large.factor] != large.count:
                        self.factors.split(large.factor, large.count, why)
                    self.factors.split(large.factor, small.count, why)

    def axis(self, cut: Cut, index: int) -> Axis:
        """Return the graph's axis for one of the factors that an axis cuts."""
        name = cut.axis if index == 0 else f"{cut.axis}_{index + 1}"
        return Axis(name, self.names(cut.factor), self.factors.sizes[cut.factor] // cut.count)

    def maps(self, tile: Tile) -> tuple[str | None, ...]:
        """Return the dims of a tile that the graph's grid axes cut."""
        cuts = [tile.along(axis)[i : i + 1] for axis, i in self.slots]
        return tuple(self.names(c[0].factor) if c else None for c in cuts)

    def input(
        self, builder: Builder, tile: Tile, whole: TensorType, extents: dict[str, int]
    ) -> str:
        """Add an input of the body: a tile of an operand."""
        loop = tile.along(LOOP)
        name = builder.free_name(f"{tile.name}_tile" if tile.cuts else tile.name)
        cut = self.names(loop[0].factor) if loop else None
        node = Node("input", (), (Value(name, whole),), cuts=self.maps(tile), loop_cut=cut)
        assert builder.space is not None
        type_ = tile_type(node, whole, builder.space, extents)
        return builder.add(replace(node, outs=(Value(name, type_),)))

    def output(self, scope: Scope, tile: Tile, step: Step) -> Tile:
        """Add an output: where each block's tile goes in the result."""
        only_values([tile], "new_output")
        what = f"the output map {step.maps}"
        if tile.looped and self.frame.loop_range > 1:
            raise GraphError(
                f"{what} stores a value of one iteration",
                "accumulate it over the loop first: forloop_accum",
            )
        rows = [list(row) for row in tile.rows]
        placed = {axis: dim for axis, dim, _ in cut_dims(step.maps, self.frame.grid, what)}
        for axis in AXES:
            self.place(tile, axis, placed.get(axis), rows)
        dims = {d.name: d for d in scope.builder.types[tile.name].dims}
        full = tuple(
            replace(dims[self.names(f)], size=self.factors.sizes[f]) for row in rows for f in row
        )
        name = scope.builder.free_name(f"{tile.name}_stored")
        value = Value(name, TensorType(full, self.storage))
        scope.builder.add(Node("output", (tile.name,), (value,), cuts=self.maps(tile)))
        return Tile(name, tuple(tuple(row) for row in rows))

    def place(self, tile: Tile, axis: str, dim: int | None, rows: list[list[Factor]]) -> None:
        """Put what an axis cuts of a tile at the front of the dim where its blocks go."""
        cuts = tile.along(axis)
        count = self.frame.grid[AXES.index(axis)]
        if dim is None:
            if cuts:
                raise GraphError(
                    f"the {count} blocks along {axis} hold different values, the output map stores "
                    "all of them at one place",
                    "let the output map say which dim they lie along",
                )
            return
        if not cuts:
            raise GraphError(
                f"the {count} blocks along {axis} hold the same values, the output map lays them "
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


def compute(scope: Scope, steps: Sequence[Step], found: dict[int, Tile]) -> None:
    """Add the nodes of every step that is neither input nor output nor kernel."""
    for step in steps:
        if step.op not in ("input", "output"):
            made = lowered(scope, step, [found[a] for a in step.args])
            found.update(zip((t.number for t in step.outs), made, strict=True))


def _rows_along(axis: str, cuts: Sequence[Sequence[Cut]]) -> list[list[Cut]]:
    """Return what an axis cuts, for each input that it cuts."""
    rows = ([c for c in of_input if c.axis == axis] for of_input in cuts)
    return [row for row in rows if row]
