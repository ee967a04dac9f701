"""What positional programs consist of: tensors, steps, block graphs, and extents of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import GraphError, MirageError
from mirage_kernels.generator.ir import DType

if TYPE_CHECKING:
    from mirage_kernels.generator.frontend.positional.program import Program

Extents = tuple[int, ...]
Three = tuple[int, int, int]  # x, y, z: a grid, a block, or the dims that a grid's axes cut
NOWHERE = -1  # in maps: an axis that cuts no dim; a loop that cuts no dim
AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Tensor:
    """A positional tensor: its number in the program, extents, element type.

    `strides` (in elements) say how an input or a result lies in memory; none means row-major.
    """

    number: int
    extents: Extents
    dtype: DType = DType.FP16
    strides: Extents = ()

    def __post_init__(self) -> None:
        if self.strides and len(self.strides) != len(self.extents):
            raise MirageError(
                f"{len(self.strides)} strides are given for {len(self.extents)} dims",
                "strides are in elements, one for each dim",
            )

    @property
    def guid(self) -> int:
        """The number, as Mirage calls it."""
        return self.number

    @property
    def dims(self) -> Extents:
        """Extents of all dims."""
        return self.extents

    @property
    def num_dims(self) -> int:
        """Number of dims."""
        return len(self.extents)

    def dim(self, index: int) -> int:
        """Return the extent of one dim."""
        return self.extents[index]

    def position(self, dim: int) -> int:
        """Return the position of a dim that may be counted from the end."""
        return dim + self.num_dims if -self.num_dims <= dim < 0 else dim

    @property
    def layout(self) -> Extents:
        """Strides in elements, those of a row-major tensor where none are given."""
        return self.strides or row_major(self.extents)


@dataclass(frozen=True)
class Step:
    """One operator of a kernel or block graph, applied to tensors by number.

    `dim` is the dim that a reduction shortens to `size` elements, the first one that a norm runs
    over, the one that concat joins, or the one that the loop cuts of a block's input (its fmap).
    `maps` is the imap of a block's input or the omap of its output; `kind` the kind of an
    accumulation; `numbers` the constants of clamp and mul_scalar.
    """

    op: str
    args: tuple[int, ...] = ()
    outs: tuple[Tensor, ...] = ()
    dim: int = NOWHERE
    size: int = 1
    maps: Three = (NOWHERE, NOWHERE, NOWHERE)
    kind: str = ""
    numbers: tuple[float, ...] = ()
    block: Program | None = None


@dataclass(frozen=True)
class Frame:
    """Where a block graph runs: grid, threads (kept, not used), its loop, `reduction_dimx`."""

    grid: Three
    threads: Three
    loop_range: int
    dimx: int

    def __post_init__(self) -> None:
        if min(*self.grid, self.loop_range, self.dimx) < 1:
            raise GraphError(
                f"a block graph with grid {self.grid}, forloop_range {self.loop_range} and "
                f"reduction_dimx {self.dimx}",
                "all of them are at least 1",
            )


def row_major(extents: Extents) -> Extents:
    """Return the strides of a contiguous tensor."""
    strides = [1]
    for n in reversed(extents[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides))


ACCUMULATIONS = {"accum": ("", "sum", "mean", "rms", "sum_todimx"), "accum_rescale": ("", "sum")}
MOST_DIMS = 8
LARGEST = 2**40  # elements: beyond it no tensor is meant

# Step, extents of its operands, where its block graph runs (None at kernel level) -> extents
# of its result.
ShapeRule = Callable[[Step, Sequence[Extents], "Frame | None"], Extents]


def check_extents(extents: Extents, what: str) -> Extents:
    """Return extents that a tensor can have; raise GraphError otherwise."""
    too_many = not 1 <= len(extents) <= MOST_DIMS
    if too_many or min(extents) < 1 or prod(extents) > LARGEST:
        raise GraphError(
            f"{what} has the dims {list(extents)}",
            f"a tensor has 1 to {MOST_DIMS} dims, each of at least 1 element",
        )
    return extents


def _with(extents: Extents, dim: int, size: int) -> Extents:
    return (*extents[:dim], size, *extents[dim + 1 :])


def elementwise(step: Step, args: Sequence[Extents], frame: Frame | None) -> Extents:
    """Return the larger of the operands' extents, dim by dim; one of them may be 1."""
    a, b = args[0], args[-1]
    if len(a) != len(b) or any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        raise GraphError(
            f"{step.op} of {list(a)} and {list(b)}: the dims don't fit",
            "operands have equally many dims; each pair is equal, or one of them is 1",
        )
    return tuple(map(max, a, b))


def matmul(step: Step, args: Sequence[Extents], frame: Frame | None) -> Extents:
    """[..., M, K] and [..., K, N]  ->  [..., M, N]."""
    a, b = args
    if len(a) != len(b) or len(a) < 2 or a[-1] != b[-2] or a[:-2] != b[:-2]:
        raise GraphError(
            f"matmul of {list(a)} and {list(b)}: the dims don't fit",
            "operands are [..., M, K] and [..., K, N] with the same leading dims",
        )
    return (*a[:-1], b[-1])


def reduction(step: Step, args: Sequence[Extents], frame: Frame | None) -> Extents:
    """Shorten a dim to `step.size` elements."""
    extents, dim, size = args[0], step.dim, step.size
    if size < 1 or extents[dim] % size:
        what = f"accumulation {step.kind!r}" if step.kind else step.op
        raise GraphError(f"{what}: dim {dim} of {list(extents)} does not reduce to {size}")
    return _with(extents, dim, size)


def accum(step: Step, args: Sequence[Extents], frame: Frame | None) -> Extents:
    """Keep the extents, or shorten the last dim as the kind of accumulation says."""
    assert frame is not None
    if step.kind not in ACCUMULATIONS[step.op]:
        raise GraphError(
            f"there is no {step.op} of the kind {step.kind!r}",
            f"kinds: None, {', '.join(filter(None, ACCUMULATIONS[step.op]))}",
        )
    if not step.kind:
        return args[0]
    size = frame.dimx if step.kind == "sum_todimx" else 1
    last = len(args[0]) - 1
    return reduction(Step(step.op, dim=last, size=size, kind=step.kind), args, frame)


def concat(step: Step, args: Sequence[Extents], frame: Frame | None) -> Extents:
    """Add up one dim; the others are equal."""
    (a, b), at = args, step.dim
    if len(a) != len(b) or _with(a, at, 0) != _with(b, at, 0):
        raise GraphError(f"concat of {list(a)} and {list(b)} along dim {at}: the dims don't fit")
    return _with(a, at, a[at] + b[at])


def cut_dims(maps: Three, grid: Three, what: str) -> list[tuple[str, int, int]]:
    """Return axis, dim and number of parts of every cut that a map makes on a grid.

    An axis of one block cuts nothing. Raises GraphError when two axes cut one dim.
    """
    named = zip(AXES, maps, grid, strict=True)
    cuts = [(axis, dim, count) for axis, dim, count in named if count > 1 and dim != NOWHERE]
    if len({dim for _, dim, _ in cuts}) < len(cuts):
        raise GraphError(f"{what}: two grid axes cut the same dim, map {maps} on grid {grid}")
    return cuts


def _extent(extents: Extents, dim: int, what: str) -> int:
    if not 0 <= dim < len(extents):
        raise GraphError(f"{what} names dim {dim} of a tensor {list(extents)}")
    return extents[dim]


def tile_extents(step: Step, whole: Extents, frame: Frame) -> Extents:
    """Return the extents of the tile that a block's input gives its blocks in one iteration."""
    what = f"the input map {step.maps} of a tensor {list(whole)}"
    cuts = [(dim, count) for _, dim, count in cut_dims(step.maps, frame.grid, what)]
    if step.dim != NOWHERE:
        cuts.append((step.dim, frame.loop_range))
    tile = whole
    for dim, count in cuts:
        extent = _extent(tile, dim, what)
        if extent % count:
            raise GraphError(
                f"{what}: dim {dim} of {extent} does not fall into {count} equal tiles",
                "Mirage's programs divide evenly: choose another grid or forloop_range",
            )
        tile = _with(tile, dim, extent // count)
    return tile


def stored_extents(step: Step, tile: Extents, frame: Frame) -> Extents:
    """Return the extents of the tensor that the blocks' tiles make together."""
    what = f"the output map {step.maps} of a tile {list(tile)}"
    for _, dim, count in cut_dims(step.maps, frame.grid, what):
        tile = _with(tile, dim, _extent(tile, dim, what) * count)
    return check_extents(tile, "the output of a block graph")
