"""Hand-written block graphs in named dims: what each grid axis and the loop cut, then their nodes.

A grid axis may cut different dims of different inputs into equally many tiles, and what it cuts
may consist of several atoms: it becomes one axis of ours per atom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.mirage.atoms import Atom, Atoms, Row
from mirage_kernels.generator.frontend.mirage.program import AXES, NOWHERE, Block, Step
from mirage_kernels.generator.frontend.mirage.rules import RULES
from mirage_kernels.generator.frontend.mirage.shapes import cut_dims
from mirage_kernels.generator.frontend.mirage.tiles import LOOP, Cut, Scope, Tile, only_values
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


@dataclass(frozen=True)
class Operand:
    """A tensor that a block graph is applied to: its type, the atoms of its dims."""

    name: str
    type: TensorType
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Stored:
    """A result of a block graph: its value in the body, the atoms of its dims."""

    name: str
    rows: tuple[Row, ...]


@dataclass
class BlockLowering:
    """One block graph on its way into named dims."""

    block: Block
    atoms: Atoms
    names: Callable[[Atom], str]
    storage: DType

    def run(self, operands: Sequence[Operand]) -> tuple[Graph, list[Stored]]:
        """Return the body and what its outputs are made of."""
        inputs = self.block.of("input")
        cuts = [self.cuts_of(s, o) for s, o in zip(inputs, operands, strict=True)]
        self.agree(cuts)
        axes = {axis: self.lead(axis, cuts) for axis in (*AXES, LOOP)}
        grid = tuple(self.axis(c, i) for a in AXES for i, c in enumerate(axes[a]))
        loop = self.axis(axes[LOOP][0], 0) if axes[LOOP] else None
        builder = Builder(Level.BLOCK, Space(grid, loop))
        loop_cuts = tuple(c for of_input in cuts for c in of_input if c.axis == LOOP)
        scope = Scope(builder, self.atoms, self.names, self.block.loop_range, loop_cuts)
        slots = [(a, i) for a in AXES for i in range(len(axes[a]))]
        found = {}
        extents = extents_of([o.type for o in operands])
        for step, operand, of_input in zip(inputs, operands, cuts, strict=True):
            tile = Tile("", self.visible(operand.rows, of_input), tuple(of_input))
            name = self.input(builder, operand, self.slotted(tile, slots), extents)
            found[step.outs[0].number] = replace(tile, name=name, looped=bool(tile.along(LOOP)))
        self.compute(scope, found)
        stored = [self.output(scope, found[s.args[0]], s, slots) for s in self.block.of("output")]
        graph = builder.graph([s.name for s in stored])
        return with_precision(graph, self.storage), stored

    def compute(self, scope: Scope, found: dict[int, Tile]) -> None:
        """Add the nodes of every step between inputs and outputs."""
        for step in self.block.steps:
            if step.op not in ("input", "output"):
                made = RULES[step.op](scope, step, [found[a] for a in step.args])
                found.update(zip((t.number for t in step.outs), made, strict=True))

    def cuts_of(self, step: Step, operand: Operand) -> list[Cut]:
        """Return how the grid axes and the loop cut the atoms of an input."""
        what = f"the input map {step.maps}"
        wanted = [(axis, dim, n) for axis, dim, n in cut_dims(step.maps, self.block.grid, what)]
        if step.dim != NOWHERE and self.block.loop_range > 1:
            wanted.append((LOOP, step.dim, self.block.loop_range))
        cuts: list[Cut] = []
        for axis, dim, count in wanted:
            cuts += self.cut_row(operand.rows[dim], Cut(NOWHERE, axis, count), cuts)
        return cuts

    def cut_row(self, row: Row, wanted: Cut, before: Sequence[Cut]) -> list[Cut]:
        """Cut a row of atoms into `wanted.count` parts, from the outermost atom on."""
        left, found = wanted.count, []
        taken = {c.atom: c for c in before}
        why = f"the {wanted.axis} axis cuts {self.atoms.extent(row)} into {wanted.count}"
        for atom in row:
            size = self.atoms.sizes[atom]
            if left == 1:
                break
            if atom in taken:  # a grid axis has cut it: the loop cuts what is in a part
                if taken[atom].count != size:
                    self.atoms.split(atom, taken[atom].count, why)
                continue
            if left % size and size % left:
                self.atoms.split(atom, left, why)
            count = min(left, size)
            found.append(Cut(atom, wanted.axis, count))
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
            rows = [[c for c in of_input if c.axis == axis] for of_input in cuts]
            rows = [row for row in rows if row]
            for other in rows[1:]:
                for mine, theirs in zip(rows[0], other, strict=False):
                    if mine.count != theirs.count:
                        small, large = sorted((mine, theirs), key=lambda c: c.count)
                        why = f"the {axis} axis of two inputs"
                        if self.atoms.sizes[large.atom] != large.count:
                            self.atoms.split(large.atom, large.count, why)
                        self.atoms.split(large.atom, small.count, why)

    def lead(self, axis: str, cuts: Sequence[Sequence[Cut]]) -> list[Cut]:
        """Return what an axis cuts of the first input that it cuts."""
        rows = ([c for c in of_input if c.axis == axis] for of_input in cuts)
        return next((row for row in rows if row), [])

    def axis(self, cut: Cut, index: int) -> Axis:
        """Return our axis for one of the atoms that an axis cuts."""
        name = cut.axis if index == 0 else f"{cut.axis}_{index + 1}"
        return Axis(name, self.names(cut.atom), self.atoms.sizes[cut.atom] // cut.count)

    def visible(self, rows: Sequence[Row], cuts: Sequence[Cut]) -> tuple[Row, ...]:
        """Return the atoms of each dim of which a tile keeps more than one element."""
        whole = {c.atom for c in cuts if c.count == self.atoms.sizes[c.atom]}
        return tuple(tuple(a for a in row if a not in whole) for row in rows)

    def slotted(self, tile: Tile, slots: Sequence[tuple[str, int]]) -> Node:
        """Return an input or output node without names: its cuts by our axes, its loop's dim."""
        cuts = [tile.along(axis)[i : i + 1] for axis, i in slots]
        names = tuple(self.names(c[0].atom) if c else None for c in cuts)
        loop = tile.along(LOOP)
        return Node(
            "input", (), (), cuts=names, loop_cut=self.names(loop[0].atom) if loop else None
        )

    def input(self, builder: Builder, operand: Operand, node: Node, extents: dict[str, int]) -> str:
        """Add an input of the body: a tile of an operand."""
        cut = any(node.cuts) or node.loop_cut
        name = builder.free_name(f"{operand.name}_tile" if cut else operand.name)
        node = replace(node, outs=(Value(name, operand.type),))
        assert builder.space is not None
        tile = tile_type(node, operand.type, builder.space, extents)
        return builder.add(replace(node, outs=(Value(name, tile),)))

    def output(
        self, scope: Scope, tile: Tile, step: Step, slots: Sequence[tuple[str, int]]
    ) -> Stored:
        """Add an output: where each block's tile goes in the result."""
        only_values([tile], "new_output")
        what = f"the output map {step.maps}"
        if tile.looped and self.block.loop_range > 1:
            raise GraphError(
                f"{what} stores a value of one iteration",
                "accumulate it over the loop first: forloop_accum",
            )
        rows = [list(row) for row in tile.rows]
        placed = {axis: dim for axis, dim, _ in cut_dims(step.maps, self.block.grid, what)}
        for axis in AXES:
            self.place(tile, axis, placed.get(axis), rows)
        flat = [a for row in rows for a in row]
        dims = {d.name: d for d in scope.builder.types[tile.name].dims}
        full = tuple(replace(dims[self.names(a)], size=self.atoms.sizes[a]) for a in flat)
        name = scope.builder.free_name(f"{tile.name}_stored")
        value = Value(name, TensorType(full, self.storage))
        cuts = self.slotted(tile, slots).cuts
        scope.builder.add(Node("output", (tile.name,), (value,), cuts=cuts))
        return Stored(name, tuple(tuple(row) for row in rows))

    def place(self, tile: Tile, axis: str, dim: int | None, rows: list[list[Atom]]) -> None:
        """Put what an axis cuts of a tile at the front of the dim where its blocks go."""
        cuts = tile.along(axis)
        count = self.block.grid[AXES.index(axis)]
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
        parts = [c.atom for c in cuts]
        if all(c.count == self.atoms.sizes[c.atom] for c in cuts):
            rows[dim][:0] = parts
        elif rows[dim][:1] != parts:
            for cut in cuts:
                if cut.count != self.atoms.sizes[cut.atom]:
                    self.atoms.split(cut.atom, cut.count, f"the output map of axis {axis}")
