"""Knobs of row-wise kernels: a block holds a row, or a part of one where nothing is summed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import Roles
from mirage_kernels.generator.schedules.loop import ALIGNED_ELEMENTS
from mirage_kernels.generator.schedules.schedule import Knobs

WARPS, CHUNKS = (1, 2, 4, 8, 16), 4  # of a block that holds a row; of its threads
TILE_WARPS, TILE_CHUNKS = 4, 1  # of a row tile; two pieces a thread were 3 to 9 % slower
MOST_CHUNKS = 8  # 16-byte pieces of a row that a thread holds


@dataclass(frozen=True)
class RowWise(Knobs):
    """Template constants of a row-wise or an elementwise kernel."""

    schedule: ClassVar[str] = "row_wise"

    warps: int
    chunks: int  # 16-byte pieces that a thread takes
    elements: int = 0  # of a row that a block takes; 0: all of them

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast."""
        return (-self.warps, -self.chunks)

    def tiles(self, roles: Roles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that such a kernel runs, by dim."""
        return {roles.tokens: 1} | ({roles.depth: self.elements} if self.elements else {})


def row_wise_knobs(depth: int) -> RowWise:
    """Return the knobs of a block per token: few elements per thread."""
    octets = -(-depth // ALIGNED_ELEMENTS)
    warps = next(w for w in (*WARPS, octets) if octets <= w * WARP_LANES * CHUNKS)
    warps = min(warps, max(WARPS))
    return RowWise(warps, -(-octets // (warps * WARP_LANES)))


def elementwise_knobs(depth: int) -> RowWise:
    """Return the knobs of row tiles: the longest that divides a row evenly.

    A few elements per thread; the depth is a multiple of 8.
    """
    octets, most = depth // ALIGNED_ELEMENTS, TILE_WARPS * WARP_LANES * TILE_CHUNKS
    tile = max(n for n in range(1, min(octets, most) + 1) if octets % n == 0)
    warps = min(TILE_WARPS, -(-tile // WARP_LANES))
    return RowWise(warps, -(-tile // (warps * WARP_LANES)), tile * ALIGNED_ELEMENTS)


def whole_row_blocks(depth: int) -> Iterator[tuple[int, int]]:
    """Yield warps of a row's block, all of which have work, and the pieces of a thread."""
    octets = ceil(depth / ALIGNED_ELEMENTS)
    for warps in WARPS:
        chunks = ceil(octets / (warps * WARP_LANES))
        idle = warps > 1 and (warps - 1) * WARP_LANES * chunks >= octets
        if chunks <= MOST_CHUNKS and not idle:
            yield warps, chunks
