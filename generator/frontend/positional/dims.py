"""Positional tensors and tiles in terms of named dims, and how two of them meet in one operator.

Every positional dim is a row of *factors*, outermost first; a factor is a named dim of the graph. A
matrix product says that two dims are the same factors. A dim that holds the results of several
blocks side by side has one factor for the blocks and one for what each of them made. Factors begin
as whole dims of the program's inputs and are joined or split where the program asks for it.

A tile is a value of the graph under construction, and how grid axes and the loop have cut its
factors. A factor that is cut into as many parts as it has elements is `whole` cut: no positional
dim of the tile shows it, but the value still varies with it. Two operands that meet may both vary
with one axis: then the factors which that axis cuts are the same coordinate and are joined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.errors import GraphError, OneDimError
from mirage_kernels.generator.ir import Builder, Node, Value
from mirage_kernels.generator.ir.infer import SCALAR
from mirage_kernels.generator.ir.naming import name_of

LOOP = "loop"
Factor = int
Row = tuple[Factor, ...]  # the factors of one positional dim, outermost first


class Refined(Exception):  # noqa: N818  (not an error: the program is read again)
    """Something that was read about dims before is no longer up to date."""


@dataclass
class Factors:
    """The factors found so far; one points to the factor it was joined with, or to its own factors.

    `join`, `split` and `drop` raise `Refined` when they change anything. `names` has names by
    provisional ones, which are d0, d1, ...
    """

    sizes: list[int] = field(default_factory=list)
    means: dict[Factor, Row] = field(default_factory=dict)  # of those that were joined or split
    first: dict[tuple[int, int], Factor] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def name(self, factor: Factor) -> str:
        """Return the name of the dim that a factor is."""
        return self.names.get(f"d{factor}", f"d{factor}")

    def of_input(self, tensor: int, position: int, extent: int) -> Row:
        """Return the factors of a dim of one of the program's inputs."""
        if (tensor, position) not in self.first:
            self.first[tensor, position] = self._new(extent)
        return self._leaves(self.first[tensor, position])

    def share(self, places: Sequence[tuple[int, int]], extent: int) -> None:
        """Let dims of the program's inputs be one factor from the start."""
        self.first |= dict.fromkeys(places, self._new(extent))

    def _new(self, size: int) -> Factor:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _leaves(self, factor: Factor) -> Row:
        if factor not in self.means:
            return (factor,)
        return tuple(leaf for part in self.means[factor] for leaf in self._leaves(part))

    def extent(self, row: Sequence[Factor]) -> int:
        """Return the number of elements along a row of factors."""
        return math.prod(self.sizes[f] for f in row)

    def join(self, a: Factor, b: Factor) -> None:
        """Make two factors of one size the same."""
        if a != b:
            self.means[max(a, b)] = (min(a, b),)
            raise Refined

    def split(self, factor: Factor, outer: int, why: str) -> None:
        """Split a factor into `outer` parts; raise GraphError where that is uneven."""
        size = self.sizes[factor]
        if size % outer:
            raise GraphError(
                f"{why}: a dim of {size} does not fall into {outer} equal parts",
                "these programs divide evenly: choose grid and loop counts that divide every dim",
            )
        if outer not in (1, size):
            self.means[factor] = (self._new(outer), self._new(size // outer))
            raise Refined

    def drop(self, row: Row) -> None:
        """Forget factors of size 1: their dim broadcasts."""
        for factor in row:
            assert self.sizes[factor] == 1
            self.means[factor] = ()
            raise Refined


@dataclass(frozen=True)
class Cut:
    """A factor cut into `count` tiles by a grid axis, or by the loop."""

    factor: Factor
    axis: str
    count: int


@dataclass(frozen=True)
class Tile:
    """A value: its name, the factors of its positional dims, how they are cut.

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

    def cut(self, factor: Factor) -> Cut | None:
        """Return how a factor is cut."""
        return next((c for c in self.cuts if c.factor == factor), None)

    def along(self, axis: str) -> tuple[Cut, ...]:
        """Return what one axis cuts, outermost first."""
        return tuple(c for c in self.cuts if c.axis == axis)

    def after_loop(self) -> tuple[Cut, ...]:
        """Return what the grid cuts."""
        return tuple(c for c in self.cuts if c.axis != LOOP)


@dataclass
class Scope:
    """A graph under construction at one level, and the factors that its dims are."""

    builder: Builder
    factors: Factors
    loop_range: int = 1
    loop_cuts: tuple[Cut, ...] = ()  # of all inputs of a block graph

    def emit(self, op: str, *args: str, over: Factor | None = None) -> str:
        """Append a node and return its name."""
        name = self.builder.free_name(name_of(op, args, self.builder.types))
        dim = "" if over is None else self.factors.name(over)
        return self.builder.add(Node(op, args, (Value(name, SCALAR),), over=dim))

    def summed(self, name: str, row: Sequence[Factor]) -> str:
        """Append sums along factors, the innermost first; of what does not vary, as often it."""
        own = self.held(name, row)
        for factor in reversed(own):
            name = self.emit("sum", name, over=factor)
        times = self.factors.extent([f for f in row if f not in own])
        return name if times == 1 else self.emit("mul", name, self.number(times))

    def held(self, name: str, row: Sequence[Factor]) -> list[Factor]:
        """Return the factors that a value varies along, not those that it is repeated along."""
        names = self.builder.types[name].names
        return [f for f in row if self.factors.name(f) in names]

    def number(self, value: float) -> str:
        """Return the name of a constant."""
        for node in self.builder.nodes:
            if (node.op, node.value) == ("const", value) and node.out.type.dtype.is_real:
                return node.name
        out = Value(self.builder.free_name("const"), SCALAR)
        return self.builder.add(Node("const", (), (out,), value=value))

    def product(self, row: Sequence[Factor]) -> str:
        """Return the name of the extent of a row of factors; "" of none."""
        product = ""
        for dim in map(self.factors.name, row):
            size = f"size_{dim}"
            if size not in self.builder.types:
                self.builder.add(Node("size", (), (Value(size, SCALAR),), over=dim))
            product = self.emit("mul", product, size) if product else size
        return product

    def mean_over(self, name: str, number: float) -> list[Factor]:
        """Return the factors that a value is the sum over if the number is 1 / their extent."""
        makers = {node.name: node for node in self.builder.nodes}
        factors = {
            self.factors.name(f): f
            for f in range(len(self.factors.sizes))
            if f not in self.factors.means
        }
        row: list[Factor] = []
        while makers[name].op == "sum":
            row.insert(0, factors[makers[name].over or ""])
            if math.isclose(number * self.factors.extent(row), 1.0, rel_tol=1e-12):
                return row
            (name,) = makers[name].args
        return []

    def is_whole(self, cut: Cut) -> bool:
        """Say whether a cut leaves a single element."""
        return self.factors.sizes[cut.factor] == cut.count

    def stand_apart(self, cut: Cut | None, why: str) -> None:
        """Make a cut a whole one: its factor falls into the parts and what is in a part."""
        if cut is not None and not self.is_whole(cut):
            self.factors.split(cut.factor, cut.count, why)

    def uncut(self, tile: Tile, row: Row, why: str) -> None:
        """Make sure that no grid axis cuts the factors of a row that is about to be reduced."""
        for cut in tile.cuts:
            if cut.factor in row and cut.axis != LOOP:
                self.stand_apart(cut, why)

    def meet(self, a: tuple[Tile, Row], b: tuple[Tile, Row], why: str) -> None:
        """Make two rows of equal extent the same factors, equally cut."""
        sizes = self.factors.sizes
        for x, y in zip(a[1], b[1], strict=False):
            mine, theirs = a[0].cut(x), b[0].cut(y)
            if x == y and mine == theirs:
                continue
            small, large = sorted((x, y), key=lambda factor: sizes[factor])
            equal = sizes[small] == sizes[large]
            if mine and theirs and (mine.axis, mine.count) == (theirs.axis, theirs.count) and equal:
                self.factors.join(x, y)
            self.stand_apart(mine, why)
            self.stand_apart(theirs, why)
            if equal:
                self.factors.join(x, y)
            self.factors.split(large, sizes[small], why)
        if len(a[1]) != len(b[1]):
            raise GraphError(f"{why}: the dims are made of different parts")

    def merged(self, a: Tile, b: Tile, why: str) -> tuple[Cut, ...]:
        """Return the cuts of a value made of both: one coordinate per axis."""
        for axis in dict.fromkeys(c.axis for c in a.cuts):
            mine, theirs = a.along(axis), b.along(axis)
            if theirs and mine != theirs:
                for cut in (*mine, *theirs):
                    self.stand_apart(cut, why)
                x, y = (tuple(c.factor for c in cuts) for cuts in (mine, theirs))
                self.meet((replace(a, cuts=()), x), (replace(b, cuts=()), y), why)
        return tuple(dict.fromkeys((*a.cuts, *b.cuts)))

    def aligned(self, a: Tile, b: Tile, why: str) -> tuple[Row, ...]:
        """Return the rows of an elementwise result; dims of extent 1 broadcast."""
        rows = []
        for x, y in zip(a.rows, b.rows, strict=True):
            m, n = (
                self.factors.extent(row) // math.prod(c.count for c in tile.cuts if c.factor in row)
                for tile, row in ((a, x), (b, y))
            )
            if m != n:
                self.factors.drop(x if m == 1 else y)
            elif x and y:
                self.meet((a, x), (b, y), why)
            rows.append(x or y)
        return tuple(rows)

    def made(self, name: str, rows: Sequence[Row], of: Sequence[Tile], why: str) -> Tile:
        """Return the tile of a value that was computed from others.

        Raises GraphError when one dim would occur twice in it: names can't tell them apart.
        """
        cuts = of[0].cuts if len(of) == 1 else self.merged(of[0], of[1], why)
        flat = [f for row in rows for f in row]
        if len(set(flat)) < len(flat):
            raise OneDimError(
                f"{why}: two dims of the result are the same dim, of "
                f"{self.factors.extent(flat[:1])} elements or a factor of it",
                "a dim that is both rows and columns (X times X transposed) has no named form yet",
            )
        held = self.builder.types[name].names
        kept = tuple(c for c in cuts if self.factors.name(c.factor) in held)
        return Tile(name, tuple(rows), kept, looped=any(t.looped for t in of))
