"""Variants of an attention kernel: how many query rows a block takes at once, and its ring.

A call has as many rows per head of keys as query tokens times heads of the group; the last variant
takes any number, tile by tile. The numbers below are those of csrc/tile/attention/flash_decode/, in
one place to be tuned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Json, parts_of
from mirage_kernels.generator.plan.attention import AttentionProgram, AttentionRoles
from mirage_kernels.generator.plan.attention_wide import groups, wide_bytes, wide_knobs
from mirage_kernels.generator.plan.variants import RESERVED_BYTES
from mirage_kernels.generator.target import Target

ROW_BUCKETS = (8, 16)  # the N side of the tensor-core instruction comes in eights
WIDEST_DEPTH = {16: 128}  # up to which a warp can hold the products of so many rows
KEYS = 16  # of one step of a warp: the M side of the instruction
# Blocks of one multiprocessor and warps of each, in order of preference.
CROWDS = ((2, 4), (1, 8), (1, 4), (1, 2))
FEW_TILES = (1, 8)  # the same for calls of few work tiles with much to read for each
FEW_TILES_ROWS = 8  # up to which: with more, such a block's registers do not suffice
FEWEST_STAGES, MOST_STAGES = 2, 5  # of a warp's ring
PADDED_DEPTH = 64  # lines of the ring are multiples of so many elements: 128 bytes
ELEMENT_BYTES, FLOAT_BYTES, BARRIER_BYTES = 2, 4, 16
SLOT_BARRIER_BYTES = 8  # tells of the arrival of a warp's step
REGISTER_QUERIES = 1024  # elements of queries that stay in registers, more lie in shared memory
LONGEST_OF_CREWS = 128  # elements of a head up to which blocks push sums to one another
MOST_CREW = 16  # blocks that do
QUAD_BYTES = 32  # of four products, and of their rows' peaks and sums
WARP_BYTES = 16  # where the place of a warp's products is noted
ALIGNMENT = 128  # bytes
COMPUTED = 2  # the least key work by which kernels lack registers for claims
CLAIM_BYTES = 16  # of the latest two claims, where blocks claim work tiles
DEALT_DEPTH = 128  # of a head, where that was measured to gain
MOST_DEALT_STAGES = 3  # copies under way when a block claims its next segment
UNITS_OF_A_PART = 3  # in proofs: passes of the loop that a block makes


OPTIONAL = ("producers", "key_sums", "dynamic")  # knobs that are left away where they are 0


@dataclass(frozen=True)
class AttentionKnobs:
    """Template constants of the emitted kernel."""

    rows: int  # query rows of one tile
    keys: int  # of one step of a warp
    warps: int  # a block's keys are dealt out to so many
    stages: int  # steps in flight per warp
    blocks: int  # of a multiprocessor
    producers: int = 0  # warps that only copy, where tiles have many rows
    key_sums: int = 0  # 1 where such tiles sum lines of keys, while their products go on
    dynamic: int = 0  # 1 where blocks claim whole work tiles, one at a time

    @property
    def pass_keys(self) -> int:
        """Return how many keys a block takes in one pass of its loop."""
        return self.keys * (groups(vars(self)) if self.producers else self.warps)

    def to_json(self) -> dict[str, Json]:
        """Return the knobs as JSON data."""
        return {k: v for k, v in vars(self).items() if k not in OPTIONAL or v}


@dataclass(frozen=True)
class AttentionVariant:
    """A kernel with fixed knobs, and the largest number of rows it is chosen for (0 = any)."""

    bucket: int
    knobs: AttentionKnobs
    few_tiles: bool = False  # for calls of few work tiles only, with much to read for each

    @property
    def name(self) -> str:
        """The name of its knobs: `UpTo8Rows`, `AnyRows`, `AnyRowsFewTiles`."""
        rows = f"UpTo{self.bucket}Rows" if self.bucket else "AnyRows"
        return f"{rows}{self.work_tiles.capitalize()}Tiles" if self.work_tiles else rows

    @property
    def work_tiles(self) -> str:
        """How many work tiles a call has that it serves: few, many; nothing where that is open."""
        return "few" if self.few_tiles else "many" if self.knobs.dynamic else ""

    def to_json(self) -> dict[str, Json]:
        """Return bucket and knobs as JSON data."""
        few = int(self.few_tiles)
        return {"bucket": self.bucket, "few_tiles": few, **self.knobs.to_json()}

    def tiles(self, roles: AttentionRoles) -> dict[str, int]:
        """Return the tile sizes of the muGraph that this variant runs, by `Axis.tile_key`.

        A pass of the loop is a step of every warp; blocks split the keys into whole passes. With
        several tokens a tile's rows are those of two tokens here: rows do not know of each other.
        """
        unit = self.knobs.pass_keys
        tokens = min(2, self.knobs.rows) if roles.tokens else 1
        tiles = {roles.sequences: 1, roles.group: self.knobs.rows // tokens}
        if roles.heads:
            tiles[roles.heads] = 1
        if roles.tokens:
            tiles[roles.tokens] = tokens
        return tiles | {roles.keys: unit, parts_of(roles.keys): UNITS_OF_A_PART * unit}


def attention_variants(program: AttentionProgram, on: Target) -> tuple[AttentionVariant, ...]:
    """Return one or two variants per bucket of rows; the last takes any number.

    Where blocks share a multiprocessor, one with a single large block serves few long work tiles.

    Buckets of more rows than a block can hold are left away. Raises PlanError for a depth whose
    lines are not 16-byte aligned, and where the shortest ring does not fit in any case.
    """
    for dim, depth in (
        (program.roles.depth, program.depth),
        (program.roles.more, program.more_depth),
    ):
        if depth % 8:
            raise PlanError(
                f"{program.recipe}: lines of {depth} elements are not 16-byte aligned",
                f"choose {dim} as a multiple of 8",
            )
    found: list[AttentionVariant] = []
    for rows in (r for r in ROW_BUCKETS if program.depth <= WIDEST_DEPTH.get(r, program.depth)):
        depths = program.sizes
        knobs = _knobs(rows, depths, CROWDS, on.shared_bytes)
        if knobs is None:
            break
        large = _knobs(rows, depths, (FEW_TILES,), on.shared_bytes)
        if large and knobs.blocks > large.blocks and rows <= FEW_TILES_ROWS:
            found.append(AttentionVariant(rows, large, few_tiles=True))
        found.append(AttentionVariant(rows, knobs))
    if not found:
        raise PlanError(
            f"{program.recipe}: {FEWEST_STAGES} stages of {program.depth} elements need more "
            f"shared memory than the {on.shared_bytes} bytes of a block"
        )
    wide = wide_knobs(program, on)
    if wide:
        return (*found, AttentionVariant(0, AttentionKnobs(**wide)))
    widest = max(v.bucket for v in found)
    return tuple(replace(v, bucket=0) if v.bucket == widest else v for v in found)


def with_dynamic(
    program: AttentionProgram, variants: Sequence[AttentionVariant]
) -> tuple[AttentionVariant, ...]:
    """Return variants and, before those of small blocks, the same that deal out whole work tiles.

    These serve calls of many work tiles that are equally long. A kernel whose queries have several
    tokens has none: what a token sees makes its work tiles differ.
    """
    return tuple(v for variant in variants for v in _dealt(program, variant))


def _dealt(program: AttentionProgram, variant: AttentionVariant) -> Iterator[AttentionVariant]:
    knobs = variant.knobs
    small = knobs.rows == min(ROW_BUCKETS) and knobs.blocks > 1 and not variant.few_tiles
    plain = program.key_work < COMPUTED and not program.roles.more and not program.roles.tokens
    short = knobs.stages <= MOST_DEALT_STAGES
    if small and plain and short and program.depth == DEALT_DEPTH:
        yield replace(variant, knobs=replace(knobs, dynamic=1))
    yield variant


def shared_bytes(knobs: AttentionKnobs, depth: int, more: int = 0, key_work: int = 0) -> int:
    """Return the shared memory of one block: rings, what meets, kept queries.

    `more` is what keys have beside the lines that are keys and values alike, 0 where they are not;
    `key_work` as in `AttentionProgram`: where there is some, queries pass through shared memory.
    `FlashDecode::kBytes` is the same number.
    """
    if knobs.producers:
        return wide_bytes(vars(knobs), depth)
    pitch = _pitch(depth)
    slot = knobs.keys * (pitch + _pitch(more or depth)) + SLOT_BARRIER_BYTES
    ring = knobs.warps * knobs.stages * slot + knobs.dynamic * CLAIM_BYTES
    met = ring + knobs.warps * (WARP_BYTES + knobs.rows * 2 * FLOAT_BYTES)
    pushed = met + _crew_bytes(knobs.rows, depth)
    kept = knobs.rows * (pitch + _pitch(more))
    if knobs.rows * depth <= REGISTER_QUERIES and not key_work:
        kept = 0
    return -(-pushed // ALIGNMENT) * ALIGNMENT + kept


def _crew_bytes(rows: int, depth: int) -> int:
    """Return the bytes of what blocks push to one another, and of the barrier that counts it."""
    quads = rows * depth // 4 + MOST_CREW if depth <= LONGEST_OF_CREWS else 0
    return quads * QUAD_BYTES + BARRIER_BYTES


def _pitch(depth: int) -> int:
    """Return the bytes of a line in shared memory."""
    return -(-depth // PADDED_DEPTH) * PADDED_DEPTH * ELEMENT_BYTES


def _knobs(
    rows: int, depths: tuple[int, int, int], crowds: Sequence[tuple[int, int]], limit: int
) -> AttentionKnobs | None:
    """Return the first crowd that has room for a ring, with the most stages; None: no room.

    `depths` is what `shared_bytes` wants to know of the program.
    """
    for blocks, warps in crowds:
        share = (limit + RESERVED_BYTES) // blocks - RESERVED_BYTES
        for stages in range(MOST_STAGES, FEWEST_STAGES - 1, -1):
            knobs = AttentionKnobs(rows, KEYS, warps, stages, blocks)
            if shared_bytes(knobs, *depths) <= share:
                return knobs
    return None
