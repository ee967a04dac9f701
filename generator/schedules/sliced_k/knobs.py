"""Knobs of sliced-K: every warp of a block takes slices of the depth; its sums meet in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mirage_kernels.generator.schedules.loop import LoopKnobs, Producers

CHUNK_DEPTH = 32  # contracted elements that a warp takes of a row at once: 4 lanes x 16 bytes
PRODUCER_CHUNKS = 2


@dataclass(frozen=True)
class SlicedK(LoopKnobs):
    """Template constants of a sliced-K kernel."""

    schedule: ClassVar[str] = "sliced_k"

    tokens: int  # of one block
    rows: int  # of one block
    warps: int  # the loop is partitioned over
    chunks: int  # 16-byte pieces that a lane takes of a row per step: 32 elements of four lanes
    stages: int
    producers: Producers | None = None

    @property
    def label(self) -> str:
        """Name the schedule, and whether other blocks compute a product for it."""
        return self.schedule + (self.producers.label if self.producers else "")

    @property
    def has_workspace(self) -> bool:
        """Say whether blocks leave something for others, in a workspace."""
        return self.producers is not None

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast."""
        tile = (self.producers.rows, self.producers.tokens) if self.producers else (0, 0)
        return (-self.warps, -self.chunks, self.rows, *tile, -self.stages)

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        return self.warps * self.chunks * CHUNK_DEPTH

    def of_producers(self, producers: Producers) -> SlicedK:
        """Return the knobs of producer blocks beside such blocks."""
        sizes = (producers.tokens, producers.rows)
        return SlicedK(*sizes, self.warps, PRODUCER_CHUNKS, producers.stages)
