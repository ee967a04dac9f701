"""Positional tensors and tiles in terms of named dims, and how two of them meet in one operator.

A tile is a value of our graph under construction. It says which atoms each positional dim is made
of and how grid axes and the loop have cut them. An atom that is cut into as many parts as it has
elements is `whole` cut: the tile has one element along it, no positional dim shows it, but the
value still varies with it. Two operands that meet may both vary with one axis: then the atoms
which that axis cuts are the same coordinate and are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.mirage.atoms import Atom, Atoms, Row
from mirage_kernels.generator.ir import Builder, Node, Value
from mirage_kernels.generator.ir.infer import SCALAR
from mirage_kernels.generator.ir.naming import name_of

LOOP = "loop"


@dataclass(frozen=True)
class Cut:
    """An atom cut into `count` tiles by a grid axis, or by the loop."""

    atom: Atom
    axis: str
    count: int


@dataclass(frozen=True)
class Tile:
    """A value: its name, the atoms of its positional dims, how they are cut.

    `looped` says that it differs between iterations. `role` marks what only the rescaling
    accumulations may take: a running maximum, how much it grew, and exp of that; `peak` names the
    maximum. `parts` are the tiles that a concat would put side by side, `joint` the dim.
    """

    name: str
    rows: tuple[Row, ...]
    cuts: tuple[Cut, ...] = ()
    looped: bool = False
    role: str = ""
    peak: str = ""
    parts: tuple[Tile, ...] = ()
    joint: int = -1

    def cut(self, atom: Atom) -> Cut | None:
        """Return how an atom is cut."""
        return next((c for c in self.cuts if c.atom == atom), None)

    def along(self, axis: str) -> tuple[Cut, ...]:
        """Return what one axis cuts, outermost first."""
        return tuple(c for c in self.cuts if c.axis == axis)


@dataclass
class Scope:
    """A graph under construction at one level: its builder, the atoms, their names."""

    builder: Builder
    atoms: Atoms
    names: Callable[[Atom], str]
    loop_range: int = 1
    loop_cuts: tuple[Cut, ...] = ()  # of all inputs of a block graph

    def emit(self, op: str, *args: str, over: Atom | None = None) -> str:
        """Append a node and return its name."""
        name = self.builder.free_name(name_of(op, args, self.builder.types))
        dim = "" if over is None else self.names(over)
        return self.builder.add(Node(op, args, (Value(name, SCALAR),), over=dim))

    def number(self, value: float) -> str:
        """Return the name of a constant."""
        for node in self.builder.nodes:
            if node.op == "const" and node.value == value:
                return node.name
        name = self.builder.free_name("const")
        return self.builder.add(Node("const", (), (Value(name, SCALAR),), value=value))

    def size(self, atom: Atom) -> str:
        """Return the name of an atom's extent as a scalar."""
        dim = self.names(atom)
        if f"size_{dim}" in self.builder.types:
            return f"size_{dim}"
        return self.builder.add(Node("size", (), (Value(f"size_{dim}", SCALAR),), over=dim))

    def is_whole(self, cut: Cut) -> bool:
        """Say whether a cut leaves a single element."""
        return self.atoms.sizes[cut.atom] == cut.count

    def hidden(self, tile: Tile, axis: str) -> list[Atom]:
        """Return the atoms along which a tile has one element because of an axis."""
        return [c.atom for c in tile.along(axis) if self.is_whole(c)]

    def stand_apart(self, cut: Cut | None, why: str) -> None:
        """Make a cut a whole one: its atom falls into the parts and what is in a part."""
        if cut is not None and not self.is_whole(cut):
            self.atoms.split(cut.atom, cut.count, why)

    def uncut(self, tile: Tile, row: Row, why: str) -> None:
        """Make sure that no grid axis cuts the atoms of a row that is about to be reduced."""
        for atom in row:
            cut = tile.cut(atom)
            if cut is not None and cut.axis != LOOP:
                self.stand_apart(cut, why)

    def meet(self, a: tuple[Tile, Row], b: tuple[Tile, Row], why: str) -> None:
        """Make two rows of equal extent the same atoms, equally cut."""
        for x, y in zip(a[1], b[1], strict=False):
            mine, theirs = a[0].cut(x), b[0].cut(y)
            if x == y and mine == theirs:
                continue
            small, large = sorted((x, y), key=lambda atom: self.atoms.sizes[atom])
            equal = self.atoms.sizes[small] == self.atoms.sizes[large]
            if mine and theirs and (mine.axis, mine.count) == (theirs.axis, theirs.count) and equal:
                self.atoms.join(x, y)
            self.stand_apart(mine, why)
            self.stand_apart(theirs, why)
            if equal:
                self.atoms.join(x, y)
            self.atoms.split(large, self.atoms.sizes[small], why)
        if len(a[1]) != len(b[1]):
            raise GraphError(f"{why}: the dims are made of different parts")

    def merged(self, a: Tile, b: Tile, why: str) -> tuple[Cut, ...]:
        """Return the cuts of a value made of both: one coordinate per axis."""
        for axis in dict.fromkeys(c.axis for c in a.cuts):
            mine, theirs = a.along(axis), b.along(axis)
            if theirs and mine != theirs:
                for cut in (*mine, *theirs):
                    self.stand_apart(cut, why)
                rows = (tuple(c.atom for c in cuts) for cuts in (mine, theirs))
                (x, y) = ((replace(t, cuts=()), row) for t, row in zip((a, b), rows, strict=True))
                self.meet(x, y, why)
        return tuple(dict.fromkeys((*a.cuts, *b.cuts)))

    def aligned(self, a: Tile, b: Tile, why: str) -> tuple[Row, ...]:
        """Return the rows of an elementwise result; dims of extent 1 broadcast."""
        rows = []
        for x, y in zip(a.rows, b.rows, strict=True):
            wide = self.extent(a, x), self.extent(b, y)
            if wide[0] == wide[1]:
                if x and y:
                    self.meet((a, x), (b, y), why)
            else:
                for atom in x if wide[0] == 1 else y:
                    self.atoms.drop(atom)
            rows.append(x or y)
        return tuple(rows)

    def extent(self, tile: Tile, row: Row) -> int:
        """Return the number of elements of a tile along a row."""
        extent = self.atoms.extent(row)
        for atom in row:
            cut = tile.cut(atom)
            extent //= cut.count if cut else 1
        return extent

    def made(self, name: str, rows: Sequence[Row], of: Sequence[Tile], why: str) -> Tile:
        """Return the tile of a value that was computed from others.

        Raises GraphError when one dim would occur twice in it: names can't tell them apart.
        """
        cuts = of[0].cuts if len(of) == 1 else self.merged(of[0], of[1], why)
        flat = [a for row in rows for a in row]
        if len(set(flat)) < len(flat):
            raise GraphError(
                f"{why}: two dims of the result are the same dim, of "
                f"{self.atoms.extent(flat[:1])} elements or a factor of it",
                "a dim that is both rows and columns (X times X transposed) has no named form yet",
            )
        held = self.builder.types[name].names
        kept = tuple(c for c in cuts if self.names(c.atom) in held)
        return Tile(name, tuple(rows), kept, looped=any(t.looped for t in of))


def only_values(tiles: Sequence[Tile], op: str) -> None:
    """Raise GraphError for an operand that is no ordinary value."""
    for tile in tiles:
        if tile.parts:
            raise GraphError(
                f"{op} takes a concat", "only a matmul of two concats along its inner dim can"
            )
        if tile.role in ("growth", "factor"):
            raise GraphError(
                f"{op} takes the growth of a running maximum",
                "take exp of it and give that to forloop_accum_rescale",
            )
