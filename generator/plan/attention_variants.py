"""Variants of an attention kernel: how many query rows a block takes at once, and its ring.

A call has as many rows per head of keys as query tokens times heads of the group; the last variant
takes any number, tile by tile. The numbers below are those of csrc/tile/attention.cuh, in one
place to be tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Json, parts_of
from mirage_kernels.generator.plan.attention import AttentionProgram, AttentionRoles
from mirage_kernels.generator.plan.variants import RESERVED_BYTES, ROW_TILE
from mirage_kernels.generator.target import Target

ROW_BUCKETS = (8, 16, 32)  # the N side of the tensor-core instruction comes in eights
WIDEST_DEPTH = {16: 128, 32: 64}  # up to which a warp can hold the products of so many rows
KEYS = 16  # of one step of a warp: the M side of the instruction
# Blocks of one multiprocessor and warps of each, in order of preference.
CROWDS = ((2, 4), (1, 8), (1, 4), (1, 2))
FEWEST_STAGES, MOST_STAGES = 2, 5  # of a warp's ring
PADDED_DEPTH = 64  # lines of the ring are multiples of so many elements: 128 bytes
ELEMENT_BYTES = 2
REGISTER_QUERIES = 1024  # elements of queries that stay in registers, more lie in shared memory
MOST_MEETING_BYTES = 17 * 1024  # of products that meet; larger ones meet in slices
ALIGNMENT = 128  # bytes
UNITS_OF_A_PART = 3  # in proofs: passes of the loop that a block makes


@dataclass(frozen=True)
class AttentionKnobs:
    """Template constants of the emitted kernel."""

    rows: int  # query rows of one tile
    keys: int  # of one step of a warp
    warps: int  # a block's keys are dealt out to so many
    stages: int  # steps in flight per warp
    blocks: int  # of a multiprocessor

    def to_json(self) -> dict[str, Json]:
        """Return the knobs as JSON data."""
        return dict(vars(self))


@dataclass(frozen=True)
class AttentionVariant:
    """A kernel with fixed knobs, and the largest number of rows it is chosen for (0 = any)."""

    bucket: int
    knobs: AttentionKnobs

    @property
    def name(self) -> str:
        """The name of its knobs: `UpTo8Rows`, `AnyRows`."""
        return f"UpTo{self.bucket}Rows" if self.bucket else "AnyRows"

    def tiles(self, roles: AttentionRoles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that this variant runs, by `Axis.tile_key`.

        A pass of the loop is a step of every warp; blocks split the keys into whole passes. With
        several tokens a tile's rows are those of two tokens here: rows do not know of each other.
        """
        unit = self.knobs.keys * self.knobs.warps
        tokens = min(2, self.knobs.rows) if roles.tokens else 1
        tiles = {roles.sequences: 1, roles.heads: 1, roles.group: self.knobs.rows // tokens}
        if roles.tokens:
            tiles[roles.tokens] = tokens
        return tiles | {roles.keys: unit, parts_of(roles.keys): UNITS_OF_A_PART * unit}


def attention_variants(program: AttentionProgram, on: Target) -> tuple[AttentionVariant, ...]:
    """Return one variant per bucket of rows; the last takes any number.

    Buckets of more rows than a block can hold are left away. Raises PlanError for a depth whose
    lines are not 16-byte aligned, and where the shortest ring does not fit in any case.
    """
    if program.depth % 8:
        raise PlanError(
            f"{program.recipe}: lines of {program.depth} elements are not 16-byte aligned",
            f"choose {program.roles.depth} as a multiple of 8",
        )
    found: list[AttentionVariant] = []
    for rows in (r for r in ROW_BUCKETS if program.depth <= WIDEST_DEPTH.get(r, program.depth)):
        knobs = _knobs(rows, program.depth, on.shared_bytes)
        if knobs is None:
            break
        found.append(AttentionVariant(rows, knobs))
    if not found:
        raise PlanError(
            f"{program.recipe}: {FEWEST_STAGES} stages of {program.depth} elements need more "
            f"shared memory than the {on.shared_bytes} bytes of a block"
        )
    return (*found[:-1], replace(found[-1], bucket=0))


def shared_bytes(knobs: AttentionKnobs, depth: int) -> int:
    """Return the shared memory of one block: rings, what meets, kept queries.

    `AttentionWork::kBytes` is the same number.
    """
    pitch = -(-depth // PADDED_DEPTH) * PADDED_DEPTH * ELEMENT_BYTES
    ring = knobs.warps * knobs.stages * knobs.keys * 2 * pitch  # keys and values
    met = -(-(ring + _meeting_bytes(knobs, depth)) // ALIGNMENT) * ALIGNMENT
    return met + (knobs.rows * pitch if knobs.rows * depth > REGISTER_QUERIES else 0)


def _meeting_bytes(knobs: AttentionKnobs, depth: int) -> int:
    """Return the bytes of warps' products, peaks and sums side by side, in fp32."""
    lines, piece = knobs.warps * knobs.rows, depth
    while lines * (piece + 4) * 4 > MOST_MEETING_BYTES and piece % (2 * ROW_TILE) == 0:
        piece //= 2
    return (lines * (piece + 4) + 2 * lines) * 4


def _knobs(rows: int, depth: int, limit: int) -> AttentionKnobs | None:
    """Return the first crowd that has room for a ring, with the most stages; None: no room."""
    for blocks, warps in CROWDS:
        share = (limit + RESERVED_BYTES) // blocks - RESERVED_BYTES
        for stages in range(MOST_STAGES, FEWEST_STAGES - 1, -1):
            knobs = AttentionKnobs(rows, KEYS, warps, stages, blocks)
            if shared_bytes(knobs, depth) <= share:
                return knobs
    return None
