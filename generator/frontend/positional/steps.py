"""What positional programs consist of: tensors, steps, where a block graph runs."""

from __future__ import annotations

from dataclasses import dataclass
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
