"""Variants of a kernel: which tile sizes and knobs serve which number of tokens.

Buckets of the dynamic dim are 8, 16, 32 and 64 tokens (the N side of the tensor-core instruction
comes in eights); above 64 the grid's second axis covers the rest. The rule below was read off a
sweep on an H200 (docs/measurements.md):

* rows per block so that one wave of blocks covers all rows, one block per multiprocessor, in
  eights where half of an instruction's rows may stay empty: 4608 rows in blocks of 40 instead of
  48 take 10.3 us instead of 11.7 (K = 3584, one token);
* two chunks per step, which makes 128-byte segments of every row: up to 32 tokens they are worth
  more than a single wave, above they give way to it;
* eight warps, or four where two stages of eight do not fit shared memory;
* as many stages as fit, up to 96 KB of weights in flight per multiprocessor;
* above 16 tokens products with tokens held in registers, where weights are multiplied as they are
  loaded and the target can (`held.py`);
* there two blocks split the depth where their rows fit;
* else above 32 tokens two blocks that split the depth (`split.py`), above 16 where their warpgroups
  take turns;
* where some blocks compute totals for all others (`apart.py`), fewer bytes in flight, so that these
  are not kept waiting: 9.6 us against 9.8 (16 tokens).

Other GPUs get the same rule within limits of their own; on them nothing of it has been measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.apart import (
    ROW_TILE,
    maker_tile,
    makers_of,
    rows_for,
    users_of,
)
from mirage_kernels.generator.plan.areas import Kept, Meeting, kept_areas, own_inner
from mirage_kernels.generator.plan.forms import LINE_TILE, WARP_LANES
from mirage_kernels.generator.plan.front import behind
from mirage_kernels.generator.plan.held import (
    BOXES,
    MOST_ROWS,
    STAMP_BYTES,
    HeldBlock,
    can_hold,
    held_stages,
    in_pairs,
    paired_makers,
)
from mirage_kernels.generator.plan.knobs import CHUNK_DEPTH, Knobs, Variant
from mirage_kernels.generator.plan.memory import Arrangement, Buffer, arrange, side_by_side
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.plan.split import BLOCKS, SplitBlock, split_stages
from mirage_kernels.generator.target import Target

__all__ = ["CHUNK_DEPTH", "Knobs", "Variant", "variants"]

RING = "steps"  # the ring's name among the buffers
ALIGNED_ELEMENTS = 8  # of two bytes, in 16
BUCKETS = (8, 16, 32, 64)
FEW_TO_HOLD = 16  # tokens; up to so many the plan of slices is as fast
FEW_IN_EVERY_BLOCK = 8  # the same of tokens that are made (16 in front 11.8 us, else 12.9)
FEW_TOKENS = 32  # up to so many, two chunks per step are worth more than one wave
# Statistics of a norm read every token once more, in every block: 20 us against 11 at 32 tokens, 40
# against 14 at 64 (K = N = 4096), where PyTorch takes 20.
BUCKETS_WITH_STATISTICS = (8, 16, 32)
# A result beside the output that the loop computes, x + residual: every block reads both. Up to 16
# tokens that costs 0.1 to 1.1 us, a kernel for the sum in front 1.1 to 3.7; at 32 tokens it costs 3
# to 6 (docs/planning.md).
BUCKETS_WITH_RESULTS = (8, 16)
RESERVED_BYTES = 1024  # of shared memory, per block, by the system
REGISTERS_LEFT = 250  # for a step and its accumulators: 264 spill, 240 do not
REGISTERS_RECEIVING = 210  # the same beside one warp more
MAPPED_DEPTH_REGISTERS = 16  # of fp32 vectors along the depth that the loop computes (ptxas)
MAPPED_BF16_REGISTERS = 24  # more than fp16: 13 to 38 by ptxas, for six architectures
LINE_WARPS, LINE_CHUNKS = (1, 2, 4, 8, 16), 4  # of a block that holds a line; of its threads
PART_WARPS, PART_CHUNKS = 4, 1  # of a part of one; two pieces a thread were 3 to 9 % slower
MOST_BYTES_IN_FLIGHT = 96 * 1024  # of weights, per multiprocessor: more was slightly worse
MOST_BYTES_RECEIVING = 32 * 1024  # the same while totals are computed apart


@dataclass(frozen=True)
class Footprint:
    """What a tile program keeps per step and block, in units that follow from its knobs."""

    row_loads: int  # fragments of the streamed operands
    token_loads: int
    depth_loads: int
    meetings: tuple[Meeting, ...]
    sharing: bool  # of bytes between the ring and what meets after the loop
    maps_bf16: bool  # computes with bf16 elements, not only products
    maps_depth: bool  # computes vectors along the depth in fp32
    maps_tokens: bool  # computes tokens in fp32, with statistics known before the loop
    inner_lines: int = 0  # of streamed operands that the grid does not cut, in whole row tiles
    kept: tuple[Kept, ...] = ()
    receives: bool = False  # totals that other blocks compute
    split: SplitBlock | None = None  # of no rows and tokens yet
    held: HeldBlock | None = None
    row_tile: int = ROW_TILE  # a block's rows are a multiple of it

    @staticmethod
    def of(program: TileProgram) -> Footprint:
        """Return a tile program's fragments by layout, and what meets."""
        program = users_of(program)
        loads = [s.layout for s in program.loads]
        return Footprint(
            loads.count(Layout.ROWS),
            loads.count(Layout.TOKENS),
            loads.count(Layout.DEPTH),
            tuple(
                Meeting(s.out, s.layout, s.barrier, own_inner(program, s)) for s in program.meetings
            ),
            program.sharing,
            any(s.do is Do.MAP and s.dtype is DType.BF16 for s in program.loop),
            any(
                s.do is Do.MAP and s.layout is Layout.DEPTH and s.dtype is DType.FP32
                for s in program.loop
            ),
            bool(program.statistics),
            sum(own_inner(program, s) for s in program.loads),
            kept_areas(program),
            bool(program.received),
            SplitBlock.of(program),
            HeldBlock.of(behind(program) if program.front else program),
            ROW_TILE if program.roles.inner else LINE_TILE,
        )

    @property
    def products(self) -> int:
        """Accumulators over rows x tokens."""
        return [m.layout for m in self.meetings].count(Layout.ACCUM)

    def octets(self, knobs: Knobs) -> int:
        """Return how many 16-byte octets a lane holds of one step."""
        lines = self.row_loads * knobs.rows + self.token_loads * knobs.tokens + self.inner_lines
        return knobs.chunks * (lines // LINE_TILE + self.depth_loads)

    def registers(self, knobs: Knobs) -> int:
        """Return how many registers a thread needs for one step and its accumulators."""
        if self.held is not None and knobs.held:
            return self.held.sized(knobs.rows, knobs.tokens, knobs.blocks).registers
        if self.split is not None and knobs.blocks > 1:
            return self.split.sized(knobs.rows, knobs.tokens).registers
        inner = sum(m.inner for m in self.meetings) // ROW_TILE
        tiles = self.products * -(-knobs.rows // ROW_TILE) + inner
        products = tiles * (knobs.tokens // LINE_TILE) * 4
        mapped = MAPPED_BF16_REGISTERS * self.maps_bf16
        mapped += MAPPED_DEPTH_REGISTERS * self.maps_depth
        mapped += knobs.tokens * knobs.chunks * self.maps_tokens
        return products + self.octets(knobs) * 4 + mapped

    def shared_bytes(self, knobs: Knobs) -> int:
        """Return the shared memory of one block."""
        if self.held is not None and knobs.held:
            block = self.held.sized(knobs.rows, knobs.tokens, knobs.blocks)
            return replace(block, barriers=knobs.barriers).shared_bytes(knobs.stages)
        if self.split is not None and knobs.blocks > 1:
            return self.split.sized(knobs.rows, knobs.tokens).shared_bytes(knobs.stages)
        return self.arrangement(knobs).peak

    def arrangement(self, knobs: Knobs) -> Arrangement:
        """Return where the ring and what meets after the loop lie in shared memory."""
        place = arrange if self.sharing else side_by_side
        return place(self.buffers(knobs))

    def buffers(self, knobs: Knobs) -> list[Buffer]:
        """Return the ring, what meets and what is kept, with the epochs in which they are live.

        All of it is taken to be read until the last epoch, that of the epilogue.
        """
        ring = knobs.warps * knobs.stages * self.octets(knobs) * 16 * WARP_LANES
        epochs = list(accumulate(int(m.barrier) for m in self.meetings))
        met = epochs[-1] if epochs else 0
        end = met + 2 + max((k.since for k in self.kept), default=0)
        since = {k.name: 0 if k.since < 0 else met + k.since for k in self.kept}
        since |= {m.name: epoch for m, epoch in zip(self.meetings, epochs, strict=True)}
        kept = [k for k in self.kept if k.since >= 0]
        areas: list[Meeting | Kept] = [*self.meetings, *kept]
        late = [Buffer(a.name, a.bytes(knobs), frozenset(range(since[a.name], end))) for a in areas]
        whole = frozenset(range(end))
        early = [Buffer(k.name, k.bytes(knobs), whole) for k in self.kept if k.since < 0]
        return [*early, Buffer(RING, ring, frozenset({0})), *late]


def variants(program: TileProgram, on: Target) -> tuple[Variant, ...]:
    """Return one variant per bucket for a planned program on a target; the last takes any number.

    Buckets of more tokens than a block can hold are left away. Raises PlanError for extents that
    its loads cannot take, and for a program that keeps more than a block can hold in any case.
    """
    extents = program.extents
    depth = extents[program.roles.depth]
    if depth % ALIGNED_ELEMENTS:
        raise PlanError(
            f"{program.recipe}: rows of {depth} elements are not 16-byte aligned",
            f"choose {program.roles.depth} as a multiple of {ALIGNED_ELEMENTS}",
        )
    if not program.loop:
        return (Variant(0, part_knobs(depth) if program.parted else line_knobs(depth)),)
    whole, program = program, users_of(program)
    rows = extents[program.roles.rows]
    for dim in program.roles.inner:
        if extents[dim] % ALIGNED_ELEMENTS:
            raise PlanError(f"{program.recipe}: {dim} = {extents[dim]} is no multiple of 8")
    footprint = Footprint.of(program)
    most = max(BUCKETS_WITH_STATISTICS if program.statistics else BUCKETS)  # of slices
    chosen: list[Variant] = []
    for tokens in buckets(program):
        try:
            together = _front_knobs(program, tokens, on)
            together = together or _held_knobs(whole, tokens, on, FEW_TO_HOLD)
            together = together or _split_knobs(program, tokens, on)
            if not together and tokens > most:
                break
            alone = _knobs(footprint, tokens, (rows, depth), on)
            chosen.append(Variant(tokens, with_makers(whole, together or alone, on)))
        except PlanError:
            if not chosen:
                raise
            break
    return (*chosen[:-1], replace(chosen[-1], bucket=0))


def buckets(program: TileProgram) -> tuple[int, ...]:
    """Return the numbers of tokens that a program with a loop has variants for."""
    if program.also:
        return BUCKETS_WITH_RESULTS
    again = program.statistics and not program.front
    return BUCKETS_WITH_STATISTICS if again else BUCKETS


def line_knobs(depth: int) -> Knobs:
    """Return the knobs of a kernel of lines: a block per token, few elements per thread."""
    octets = -(-depth // ALIGNED_ELEMENTS)
    warps = next(w for w in (*LINE_WARPS, octets) if octets <= w * WARP_LANES * LINE_CHUNKS)
    warps = min(warps, max(LINE_WARPS))
    return Knobs(1, 0, warps, -(-octets // (warps * WARP_LANES)), 1)


def part_knobs(depth: int) -> Knobs:
    """Return the knobs of a kernel of parts: the longest that divides a line evenly.

    A few elements per thread; the depth is a multiple of 8.
    """
    octets, most = depth // ALIGNED_ELEMENTS, PART_WARPS * WARP_LANES * PART_CHUNKS
    part = max(n for n in range(1, min(octets, most) + 1) if octets % n == 0)
    warps = min(PART_WARPS, -(-part // WARP_LANES))
    chunks = -(-part // (warps * WARP_LANES))
    return Knobs(1, 0, warps, chunks, 1, line=part * ALIGNED_ELEMENTS)


def with_makers(
    program: TileProgram, knobs: Knobs, on: Target, tile: tuple[int, int] | None = None
) -> Knobs:
    """Return the knobs with those of blocks that compute totals for all others, if any do.

    Makers have the rows and tokens of `tile`, else the fewest lines. As many stages as fit: a maker
    should not wait for memory more often than it must.
    """
    if not program.apart:
        return knobs
    if knobs.held and knobs.blocks > 1:
        return _with_pairs(program, knobs, on)
    made = makers_of(program)
    extents = made.extents
    inner = extents[made.roles.rows]
    rows, tokens = tile or maker_tile(inner, knobs.tokens, program.apart)
    few = replace(knobs, maker_rows=rows, maker_tokens=tokens, maker_stages=2)
    steps = -(-extents[made.roles.depth] // (few.makers.warps * few.makers.chunks * CHUNK_DEPTH))
    footprint = Footprint.of(made)
    fitting = [
        deep
        for deep in (replace(few, maker_stages=n) for n in range(2, steps + 2))
        if footprint.shared_bytes(deep.makers) + STAMP_BYTES <= on.shared_bytes
    ]
    return fitting[-1]


def _with_pairs(program: TileProgram, knobs: Knobs, on: Target) -> Knobs:
    """Return the knobs with those of makers in pairs, as users in pairs have them."""
    found = paired_makers(program, knobs.tokens, on)
    assert found is not None  # in_pairs has asked
    block, stages = found
    tile = {"maker_rows": block.rows // block.blocks, "maker_tokens": block.tokens}
    return replace(knobs, **tile, maker_stages=stages, maker_groups=block.groups)


def _held_knobs(program: TileProgram, tokens: int, on: Target, most: int) -> Knobs | None:
    """Return the knobs of blocks that hold more than `most` tokens, None where they cannot."""
    block = HeldBlock.of(program)
    few = FEW_TOKENS if program.roles.inner else most
    if tokens <= most or not can_hold(users_of(program)):
        return None
    if tokens <= FEW_TOKENS and block.mapped and block.row_tensors == 1:
        return None  # 10.5 us against 10.2 split (4096 -> 4096), 14.4 against 12.1 (3584 -> 4608)
    if (pair := in_pairs(program, tokens, on)) is not None:
        return _held_by(pair, held_stages(pair, on))
    if tokens <= few or (program.apart and not program.stacked):
        return None
    extents = program.extents
    all_rows, waves = extents[program.roles.rows], 1
    while (rows := rows_for(all_rows, waves * on.multiprocessors)) > MOST_ROWS:
        waves += 1
    block = block.sized(rows, tokens)
    stages = held_stages(block, on)
    return _held_by(block, stages) if stages else None


def _held_by(block: HeldBlock, stages: int) -> Knobs:
    """Return the knobs of a block that holds tokens."""
    knobs = Knobs(block.tokens, block.rows, 4 * block.groups, 2 * BOXES, stages, block.blocks)
    return replace(knobs, held=block.groups, barriers=block.best_barriers)


def _front_knobs(program: TileProgram, tokens: int, on: Target) -> Knobs | None:
    """Return the knobs of blocks that hold tokens made in front, None where none are."""
    if not program.front:
        return None
    depth = program.extents[program.roles.depth]
    knobs = _held_knobs(behind(program), tokens, on, FEW_IN_EVERY_BLOCK)
    return replace(knobs, front=line_knobs(depth).warps) if knobs else None


def _split_knobs(program: TileProgram, tokens: int, on: Target) -> Knobs | None:
    """Return the knobs of two blocks that split the depth, None where they cannot."""
    extents = program.extents
    rows = rows_for(extents[program.roles.rows], on.multiprocessors // BLOCKS)
    block = SplitBlock.of(program).sized(rows, tokens)
    if tokens <= (FEW_TO_HOLD if block.turns > 1 else FEW_TOKENS):
        return None
    stages = split_stages(program, block, on)
    return Knobs(tokens, rows, 4 * block.groups, 2, stages, BLOCKS) if stages else None


def _knobs(footprint: Footprint, tokens: int, extents: tuple[int, int], on: Target) -> Knobs:
    rows, depth = extents
    for block_rows, chunks in _sizes(tokens, rows_by_wave(rows, footprint.row_tile, on)):
        knobs = Knobs(tokens, block_rows, warps=8, chunks=chunks, stages=2)
        smallest = footprint.shared_bytes(replace(knobs, warps=4))
        left = REGISTERS_RECEIVING if footprint.receives else REGISTERS_LEFT
        if footprint.registers(knobs) <= left and smallest <= on.shared_bytes:
            return _with_ring(footprint, knobs, depth, on.shared_bytes)
    few = footprint.row_tile
    raise PlanError(
        f"{tokens} tokens and {few} rows need more registers or shared memory than a block has"
    )


def rows_by_wave(rows: int, tile: int, on: Target) -> list[int]:
    """Return the rows of a block, in whole tiles, that need one wave of blocks, two and so on."""
    waves = range(1, -(-rows // on.multiprocessors) + 1)
    return list(dict.fromkeys(rows_for(rows, on.multiprocessors * n, tile) for n in waves))


def _sizes(tokens: int, most: list[int]) -> list[tuple[int, int]]:
    """Return rows of a block and chunks of a step, best first."""
    if tokens <= FEW_TOKENS:
        return [(block_rows, chunks) for chunks in (2, 1) for block_rows in most]
    return [(block_rows, chunks) for block_rows in most for chunks in (2, 1)]


def _with_ring(footprint: Footprint, knobs: Knobs, depth: int, limit: int) -> Knobs:
    """Return the knobs with warps and stages that fit `limit` bytes."""
    if footprint.shared_bytes(knobs) > limit:
        knobs = replace(knobs, warps=4)
    per_warp = -(-depth // (knobs.warps * knobs.chunks * CHUNK_DEPTH))
    most = MOST_BYTES_RECEIVING if footprint.receives else MOST_BYTES_IN_FLIGHT
    row_bytes = knobs.chunks * CHUNK_DEPTH * 2 * knobs.rows * footprint.row_loads
    while True:
        deeper = replace(knobs, stages=knobs.stages + 1)
        in_flight = deeper.warps * (deeper.stages - 1) * row_bytes
        fits = footprint.shared_bytes(deeper) <= limit and in_flight <= most
        if not fits or deeper.stages - 1 > per_warp:
            return knobs
        knobs = deeper
