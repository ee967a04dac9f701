"""What lies in shared memory beside the ring of sliced-K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirage_kernels.generator.plan.program import Layout
from mirage_kernels.generator.schedules import loop

if TYPE_CHECKING:
    from mirage_kernels.generator.schedules.sliced_k import SlicedK


@dataclass(frozen=True)
class Area:
    """A value in shared memory: partial sums of all warps, side by side, or one that is kept."""

    name: str
    layout: Layout
    inner: int = 0  # extent of the inner dim, or bytes of a row; 0: it has none
    since: int = -1  # barriers after the loop before it is written; -1: there from the start
    partial: bool = False  # a sum of every warp

    def bytes(self, knobs: SlicedK) -> int:
        """Return its size (csrc/tile/epilogue.cuh, csrc/tile/mma/resident.cuh)."""
        if self.layout is Layout.ROWS:
            return loop.aligned(knobs.rows * self.inner)
        if self.layout is Layout.FACTORS or (self.inner and not self.partial):
            lines = knobs.rows if self.layout is Layout.FACTORS else knobs.tokens
            return loop.kept_bytes(lines, self.inner)
        elements = {
            Layout.ACCUM: knobs.tokens * (knobs.rows + 4),
            Layout.TOKEN_SUMS: knobs.tokens,
            Layout.ROW_SUMS: knobs.rows,
            Layout.INNER_ACCUM: knobs.tokens * (loop.row_tiles(self.inner) + 4),
        }
        return elements[self.layout] * 4 * (knobs.warps if self.partial else 1)
