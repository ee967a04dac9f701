"""Flash decode: few query rows, each warp of a block takes keys of its own.

Its knobs: how many query rows a block takes at once, its warps, its pipeline. The numbers below are
those of csrc/tile/attention/flash_decode/, in one place to be tuned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mirage_kernels.generator.schedules.attention.knobs import (
    ELEMENT_BYTES,
    FLOAT_BYTES,
    AttentionKnobs,
)
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, AttentionRoles
from mirage_kernels.generator.schedules.schedule import Schedule
from mirage_kernels.generator.target import Target

ROW_BUCKETS = (8, 16)  # the N side of the tensor-core instruction comes in eights
WIDEST_DEPTH = {16: 128}  # up to which a warp's registers suffice for so many rows
KEYS = 16  # of one step of a warp: the M side of the instruction
# Blocks of one multiprocessor and warps of each, in order of preference.
BLOCK_SHAPES = ((2, 4), (1, 8), (1, 4), (1, 2))
FEW_TILES = (1, 8)  # the same for calls of few work tiles with much to read for each
FEWEST_STAGES, MOST_STAGES = 2, 5  # of a warp's pipeline
PADDED_DEPTH = 64  # lines in shared memory are multiples of so many elements: 128 bytes
BARRIER_BYTES = 16
STAGE_BARRIER_BYTES = 8  # tells of the arrival of a warp's step
REGISTER_QUERIES = 1024  # elements of queries that stay in registers, more lie in shared memory
LONGEST_OF_CLUSTERS = 128  # elements of a head up to which blocks reduce through DSMEM
MAX_CLUSTER = 16  # blocks that do
QUAD_BYTES = 32  # of four products, and of their rows' maxima and sums
WARP_BYTES = 16  # where the place of a warp's products is noted
ALIGNMENT = 128  # bytes
CLAIM_BYTES = 16  # of the latest two claims of the dynamic tile scheduler
COMPUTED = 2  # the least key work by which kernels lack registers for claims
DYNAMIC_DEPTH = 128  # of a head, where that was measured to gain
MOST_DYNAMIC_STAGES = 3  # copies under way when a block claims its next work tile

# Candidates: stages tried beside the rule's, fewer where there is no room for so many.
STAGES = (3, 8, 2)
EIGHT_WARPS = (BLOCK_SHAPES[0], FEW_TILES)
FEWER_WARPS = BLOCK_SHAPES[2:]  # have the longest pipeline only


@dataclass(frozen=True)
class FlashDecode(AttentionKnobs):
    """Template constants of flash decode."""

    schedule: ClassVar[str] = "flash_decode"

    dynamic: int = 0  # 1 where blocks claim whole work tiles, one at a time

    @property
    def fewest_stages(self) -> int:
        """Return the stages of the shortest pipeline."""
        return FEWEST_STAGES

    @property
    def is_dynamic(self) -> bool:
        """Say whether blocks claim whole work tiles, for calls of many."""
        return self.dynamic > 0

    @property
    def pass_keys(self) -> int:
        """Return how many keys a block takes in one pass of its loop: a step of every warp."""
        return self.keys * self.warps

    def shared_bytes(self, depth: int, more: int = 0, key_work: int = 0) -> int:
        """Return the shared memory of one block: pipelines, reductions, resident queries.

        `more` is what keys have beside the lines that are keys and values alike, 0 where they are
        not; where there is key work, queries pass through shared memory. `FlashDecode::kBytes` is
        the same number.
        """
        pitch, other = (
            -(-elements // PADDED_DEPTH) * PADDED_DEPTH * ELEMENT_BYTES
            for elements in (depth, more)
        )
        stage = self.keys * (pitch + (other or pitch)) + STAGE_BARRIER_BYTES
        pipelines = self.warps * self.stages * stage + self.dynamic * CLAIM_BYTES
        reduced = pipelines + self.warps * (WARP_BYTES + self.rows * 2 * FLOAT_BYTES)
        clusters = depth <= LONGEST_OF_CLUSTERS
        quads = self.rows * depth // 4 + MAX_CLUSTER if clusters else 0  # sent between blocks
        received = reduced + quads * QUAD_BYTES + BARRIER_BYTES
        in_registers = self.rows * depth <= REGISTER_QUERIES and not key_work
        resident = 0 if in_registers else self.rows * (pitch + other)
        return -(-received // ALIGNMENT) * ALIGNMENT + resident


def fits(program: AttentionProgram, on: Target) -> tuple[str, ...]:
    """Return what speaks against flash decode: nothing, where a block has room for its rows."""
    least = FlashDecode(min(ROW_BUCKETS), KEYS, BLOCK_SHAPES[-1][1], FEWEST_STAGES, 1)
    if least.fitting(program, on):
        return ()
    return (
        f"{FEWEST_STAGES} stages of {program.depth} elements "
        f"need more shared memory than the {on.shared_bytes} bytes of a block",
    )


SCHEDULE = Schedule(knobs=FlashDecode, roles=AttentionRoles, fits=fits)


def rule(
    rows: int, program: AttentionProgram, on: Target, shapes: Sequence[tuple[int, int]]
) -> FlashDecode | None:
    """Return the first shape of blocks that has room, with the most stages; None: no room."""
    if program.depth > WIDEST_DEPTH.get(rows, program.depth):
        return None
    found = _of_shapes(shapes, FlashDecode(rows, KEYS, 0, MOST_STAGES, 0), program, on)
    return next(found, None)


def dynamic(program: AttentionProgram, knobs: AttentionKnobs) -> FlashDecode | None:
    """Return the same knobs with a dynamic tile scheduler, where that is worth it.

    It serves calls of many work tiles that are equally long. A kernel whose queries have several
    tokens has none: what a token sees makes its work tiles differ.
    """
    if not isinstance(knobs, FlashDecode):
        return None
    small = knobs.rows == min(ROW_BUCKETS) and knobs.blocks > 1
    plain = program.key_work < COMPUTED and not program.roles.more and not program.roles.tokens
    short = knobs.stages <= MOST_DYNAMIC_STAGES
    worth = small and plain and short and program.depth == DYNAMIC_DEPTH
    return replace(knobs, dynamic=1) if worth else None


def candidates(
    rule: FlashDecode, smaller: Sequence[AttentionKnobs], program: AttentionProgram, on: Target
) -> Iterator[AttentionKnobs]:
    """Yield other knobs that fit, those that differ less from the rule's first."""
    for stages in (rule.stages, *STAGES):
        shapes = dict.fromkeys(((rule.blocks, rule.warps), *EIGHT_WARPS))
        yield from _of_shapes([*shapes], replace(rule, stages=stages), program, on)
        yield from smaller
    yield from _of_shapes(FEWER_WARPS, replace(rule, stages=max(STAGES)), program, on)


def _of_shapes(
    shapes: Sequence[tuple[int, int]], knobs: FlashDecode, program: AttentionProgram, on: Target
) -> Iterator[FlashDecode]:
    """Yield the same knobs with other shapes of blocks, with fewer stages if there is no room."""
    for blocks, warps in shapes:
        if fitting := replace(knobs, blocks=blocks, warps=warps).fitting(program, on):
            yield fitting
