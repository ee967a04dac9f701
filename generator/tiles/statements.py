"""The statements of general tile programs: what all threads of a block do together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """One line of a tile program: `reads` and `writes` name tiles, whichever thread does it."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Load(Statement):
    """Copy a block input into its tile without waiting; zeros past the tensor's extents."""

    value: str = ""


@dataclass(frozen=True)
class Fill(Statement):
    """Compute a formula for every element of a tile; zeros past the extents of the dims `ends`."""

    value: str = ""
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reduce(Statement):
    """Join a formula along `over` into a tile.

    With `carried` it joins what the tile holds already, times `factor` if that is named. A running
    maximum leaves in the tile `rescale` by what sums so far have to be multiplied. Where `JoinRows`
    joined along the rows of each warp, it joins what is in their tile of `parts`.
    """

    tile: str = ""
    value: str = ""  # a formula, or two that are multiplied
    other: str = ""
    op: str = "sum"  # a name of IDENTITY
    over: str = ""
    carried: bool = False
    factor: str = ""
    rescale: str = ""
    parts: str = ""

    @property
    def is_max(self) -> bool:
        """Say whether it is a maximum."""
        return self.op != "sum"

    @property
    def joins(self) -> str:
        """Name the struct of csrc/general that joins so."""
        return self.op.capitalize()

    @property
    def values(self) -> tuple[str, ...]:
        """The formulas of an element: one, or two that are multiplied."""
        return (self.value, self.other) if self.other else (self.value,)


@dataclass(frozen=True)
class Add(Statement):
    """tile = tile * factor + formula, for every element; or the larger of tile and formula."""

    tile: str = ""
    value: str = ""
    factor: str = ""
    op: str = "sum"  # or max


@dataclass(frozen=True)
class Clear(Statement):
    """Set a tile or a fragment to a number."""

    target: str = ""
    value: float = 0.0


@dataclass(frozen=True)
class Scale(Statement):
    """Multiply a fragment by a tile that has some of its dims."""

    fragment: str = ""
    factor: str = ""


@dataclass(frozen=True)
class Contract(Statement):
    """fragment += a * b along `over`, on tensor cores; a has the rows, b the columns."""

    fragment: str = ""
    a: str = ""
    b: str = ""
    over: str = ""


@dataclass(frozen=True)
class Spill(Statement):
    """Write a fragment to a tile."""

    fragment: str = ""
    tile: str = ""


@dataclass(frozen=True)
class Apply(Statement):
    """Compute a formula of a fragment's sums, which are those of the value `held`, in their place.

    Zeros past the extents of the dims `ends`.
    """

    fragment: str = ""
    held: str = ""
    value: str = ""
    ends: tuple[str, ...] = ()


@dataclass(frozen=True)
class JoinRows(Statement):
    """Join a formula of a fragment's sums, the value `held`, along the rows that a warp has.

    The tile `parts` of what it is the first part of has the fragment's columns, then the warps that
    share its rows. What lies past the end of the rows is left out, or `zeros` that sums add.
    """

    fragment: str = ""
    held: str = ""
    join: Reduce = Reduce()  # what it is the first part of
    zeros: bool = False


@dataclass(frozen=True)
class Combine(Statement):
    """Sum a tile over the blocks of a cluster, each times exp(its peak - their common peak).

    Or take its maximum over them.
    """

    tile: str = ""
    value: str = ""
    peak: str = ""
    op: str = "sum"  # or max


@dataclass(frozen=True)
class Store(Statement):
    """Write a formula to a result in device memory, within its extents."""

    output: str = ""
    value: str = ""


@dataclass(frozen=True)
class Rows(Statement):
    """Join rows that threads hold in registers, then store what is made of them.

    So many `lanes` of a warp share a row, a vector each. All of them get what it joins to.
    """

    joins: tuple[Reduce, ...] = ()
    stores: tuple[Store, ...] = ()
    lanes: int = 1


@dataclass(frozen=True)
class Barrier(Statement):
    """All threads of the block get here before any goes on; `copies` waits for loads first.

    All threads of the `cluster` do, or have got to where they `Arrive`, if one stands before it.
    """

    copies: bool = False
    cluster: bool = False


@dataclass(frozen=True)
class Arrive(Statement):
    """Tell the cluster that this block reads no tiles of others any more."""
