"""Variants of a kernel: which tile sizes and knobs serve which number of tokens.

Buckets of the dynamic dim are 8, 16, 32 and 64 tokens (the N side of the tensor-core instruction
comes in eights); above 64 the grid's second axis covers the rest. Knobs follow from the target:
rows so that one wave of blocks covers all weights, a ring deep enough to keep the memory busy.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Json
from mirage_kernels.generator.target import Target

ROW_TILE = 16  # rows of one tensor-core instruction
CHUNK_DEPTH = 32  # contracted elements that a warp takes from a line at once: 4 lanes x 16 bytes
BUCKETS = (8, 16, 32, 64)


@dataclass(frozen=True)
class Knobs:
    """Template constants of the emitted kernel."""

    tokens: int  # tokens of one block
    rows: int  # rows of one block
    warps: int  # the loop is dealt out to so many
    chunks: int  # of 32 contracted elements, per step of one warp
    stages: int  # steps in flight

    def to_json(self) -> dict[str, Json]:
        """Return the knobs as JSON data."""
        return dict(vars(self))


@dataclass(frozen=True)
class Variant:
    """A kernel with fixed knobs, and the largest number of tokens it is chosen for (0 = any)."""

    bucket: int
    knobs: Knobs

    def tiles(self, rows: str, tokens: str, depth: str) -> dict[str, int]:
        """Return the tile sizes of the muGraph that this variant runs, by dim."""
        step = self.knobs.chunks * CHUNK_DEPTH * self.knobs.warps
        return {rows: self.knobs.rows, tokens: self.knobs.tokens, depth: step}


def rows_for_one_wave(rows: int, on: Target) -> int:
    """Return the fewest rows per block, in whole row tiles, that cover all rows in one wave.

    Beyond six row tiles a block's accumulators crowd out the ring: then several waves.
    """
    waves = 1
    while True:
        tiles = -(-rows // (ROW_TILE * on.multiprocessors * waves))
        if tiles <= 6:
            return tiles * ROW_TILE
        waves += 1


def variants(rows: int, depth: int, on: Target) -> tuple[Variant, ...]:
    """Return one variant per bucket for a kernel with these static extents."""
    if depth % 8:
        raise PlanError(
            f"rows of {depth} elements are not 16-byte aligned", "choose a multiple of 8"
        )
    block_rows = rows_for_one_wave(rows, on)
    chosen = []
    for tokens in BUCKETS:
        bucket = 0 if tokens == BUCKETS[-1] else tokens
        chosen.append(Variant(bucket, _knobs(tokens, block_rows)))
    return tuple(chosen)


def _knobs(tokens: int, rows: int) -> Knobs:
    return Knobs(tokens, rows, warps=8, chunks=2 if tokens <= 8 else 1, stages=3)
