"""Sliced-K: every warp of a block takes slices of the depth, and their sums meet in the end.

The rule was read off a sweep on an H200 (docs/measurements.md):

* rows per block so that one wave of blocks covers all rows, one block per multiprocessor, in
  eights where half of an instruction's rows may stay empty: 4608 rows in blocks of 40 instead of
  48 take 10.3 us instead of 11.7 (K = 3584, one token);
* two chunks per step, which makes 128-byte segments of every row: up to 32 tokens they are worth
  more than a single wave, above they give way to it;
* eight warps, or four where two stages of eight do not fit shared memory;
* as many stages as fit, up to 96 KB of weights in flight per multiprocessor;
* beside producer blocks fewer bytes in flight, so that these are not kept waiting: 9.6 us against
  9.8 (16 tokens).

Other GPUs get the same rule within limits of their own; on them nothing of it has been measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product
from math import ceil
from typing import ClassVar

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.arranged import RING, Arranged
from mirage_kernels.generator.plan.hardware import WAVEFRONT_BYTES
from mirage_kernels.generator.plan.layouts import LINE_TILE, WARP_LANES
from mirage_kernels.generator.plan.memory import Arrangement, Buffer, arrange
from mirage_kernels.generator.plan.program import Do, Layout, Statement, TileProgram
from mirage_kernels.generator.schedules import loop
from mirage_kernels.generator.schedules.latency import TOKEN_BYTES, WAVE_US, Streaming
from mirage_kernels.generator.schedules.producer_blocks import TAG_BYTES, producer_tiles
from mirage_kernels.generator.schedules.schedule import Model, Ranked
from mirage_kernels.generator.schedules.sliced_k.area import Area
from mirage_kernels.generator.target import Target

CHUNK_DEPTH = 32  # contracted elements that a warp takes of a row at once: 4 lanes x 16 bytes
PRODUCER_CHUNKS = 2
MAPPED_DEPTH_REGISTERS = 16  # of fp32 vectors along the depth that the loop computes (ptxas)
MAPPED_BF16_REGISTERS = 24  # more than fp16: 13 to 38 by ptxas, for six architectures

# Statistics of a norm read every token once more, in every block: 20 us against 11 at 32 tokens, 40
# against 14 at 64 (K = N = 4096), where PyTorch takes 20.
BUCKETS_WITH_STATISTICS = (8, 16, 32)
MOST_BYTES_IN_FLIGHT = 96 * 1024  # of weights, per multiprocessor: more was slightly worse
# The same of 8-bit weights and tokens beside them. 4096 -> 4096: 6.9 us with 128 KB, 6.4 with 64
# (16 tokens), 4096 -> 6144 9.0 and 7.8 (8 tokens).
MOST_EIGHT_BIT_BYTES = 96 * 1024
MOST_BYTES_BESIDE_PRODUCERS = 32 * 1024
WARPS, CHUNKS, STAGES = (4, 8), (1, 2), (2, 3, 4, 5, 6)
CHUNKS_OF_BYTES = (4,)  # so that of rows of 8 bits, too, a step takes 128 bytes
PRODUCER_TILES = 2  # tiles of producers tried, those with the fewest lines

START_US = 0.3  # and end
ADDRESS_REGISTERS = 28  # beside a step and its accumulators: 24 and 30 by ptxas
SCHEDULERS = 4  # of a multiprocessor
BESIDE = 0.7  # more of that where there are others beside it
# Of weights in flight, by multiprocessor: fewer wait for their latency.
IN_FLIGHT, COMPUTED_IN_FLIGHT = 32 * 1024, 36 * 1024
HALF_SEGMENTS = 1.065  # rows copied 64 bytes at a time, not 128: 14.8 us against 13.9
ODD_SEGMENTS = 1.15  # the same where half of a row tile stays empty: 26.7 us against 20
ALONE_CYCLES, TOGETHER_CYCLES = 24.0, 18.0  # per m16n8k16 of a scheduler, with one warp, with more
FEW_WARPS_US = 0.3  # of four warps that have a multiprocessor to themselves, not eight
VECTOR_CYCLES = 0.5  # per element of the depth, where vectors along it are computed, by slices
STATISTICS_US = 1.4  # of a token that a warp takes whole before the loop


@dataclass(frozen=True)
class SlicedK(loop.LoopKnobs):
    """Template constants of a sliced-K kernel."""

    schedule: ClassVar[str] = "sliced_k"

    tokens: int  # of one block
    rows: int  # of one block
    warps: int  # the loop is partitioned over
    chunks: int  # 16-byte pieces that a lane takes of a row per step: 32 elements of four lanes
    stages: int
    producers: loop.Producers | None = None

    @property
    def preference(self) -> tuple[int, ...]:
        """Order knobs that are predicted to be equally fast."""
        tile = (self.producers.rows, self.producers.tokens) if self.producers else (0, 0)
        return (-self.warps, -self.chunks, self.rows, *tile, -self.stages)

    @property
    def step_depth(self) -> int:
        """Return how much of the contracted dim one pass of the loop takes."""
        return self.warps * self.chunks * CHUNK_DEPTH

    @property
    def producer_knobs(self) -> SlicedK:
        """Return what producer blocks are as blocks of their own."""
        assert self.producers is not None
        p = self.producers
        return SlicedK(p.tokens, p.rows, self.warps, PRODUCER_CHUNKS, p.stages)


# -- what a block keeps ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint(loop.Block):
    """What the blocks of a tile program keep per step and in all, by their knobs."""

    @staticmethod
    def of(program: TileProgram) -> Footprint:
        """Return what blocks that stream keep."""
        return Footprint(program.streamed)

    @cached_property
    def inner_tiles(self) -> int:
        """Row tiles of accumulators over inner rows that the grid does not cut."""
        return sum(loop.row_tiles(self._inner(s)) for s in self.program.reductions) // loop.ROW_TILE

    @property
    def chunks(self) -> tuple[int, ...]:
        """The chunks that a step may have."""
        return CHUNKS_OF_BYTES if self.program.byte_rows else CHUNKS

    @property
    def row_tile(self) -> int:
        """What a block's rows are a multiple of."""
        return loop.ROW_TILE if self.program.roles.inner else LINE_TILE

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """What lies beside the ring, where sums meet, and what is kept of them, in this order."""
        program = self.program
        early = [*program.fetches, *program.statistics, *program.received]
        late = [s for stage in program.stages for s in stage.statements]
        if program.received:  # one warp multiplies while the others stream
            early += program.products
        else:
            late += program.products
        areas = [Area(s.out, s.layout, self._inner(s)) for s in early]
        areas += [Area(s.out, s.layout, self.group_bytes(s)) for s in program.group_reads]
        since = 0
        for s in program.reductions:
            since += s.barrier
            areas.append(Area(s.out, s.layout, self._inner(s), since, partial=True))
        for s, barriers in zip(late, accumulate(s.barrier for s in late), strict=True):
            if s.do in (Do.KEEP, Do.CONTRACT):
                areas.append(Area(s.out, s.layout, self._inner(s), since + barriers))
        return tuple(areas)

    def _inner(self, s: Statement) -> int:
        dim = self.program.roles.inner_of(s.type)
        return dim.size if dim else 0

    def vectors(self, knobs: SlicedK, *, whole: bool = False) -> int:
        """Return how many 16-byte vectors a lane holds of one step; `whole`: all of 16 bits."""
        lines = self.loads[Layout.ROWS] * knobs.rows + self.loads[Layout.TOKENS] * knobs.tokens
        lines += sum(loop.row_tiles(self._inner(s)) for s in self.program.loads)
        vectors = knobs.chunks * (lines // LINE_TILE + self.loads[Layout.DEPTH])
        return vectors if whole else vectors - self.spared(knobs)

    def spared(self, knobs: SlicedK) -> int:
        """Return how many fewer vectors there are where rows have 8 bits."""
        return len(self.program.byte_rows) * knobs.chunks // 2 * (knobs.rows // LINE_TILE)

    def registers(self, knobs: SlicedK) -> int:
        """Return how many registers a thread needs for one step and its accumulators.

        Beside rows of 8 bits it has a chunk of the tokens at a time (ptxas).
        """
        maps = [s for s in self.program.loop if s.do is Do.MAP]
        vectors = any(s.layout is Layout.DEPTH and s.dtype is DType.FP32 for s in maps)
        mapped = MAPPED_BF16_REGISTERS * any(s.dtype is DType.BF16 for s in maps)
        mapped += MAPPED_DEPTH_REGISTERS * vectors
        mapped += knobs.tokens * knobs.chunks * bool(self.program.statistics)
        tiles = self.sums[Layout.ACCUM] * -(-knobs.rows // loop.ROW_TILE) + self.inner_tiles
        tokens, step = knobs.tokens // LINE_TILE, self.vectors(knobs)
        if self.program.byte_rows:
            step -= (knobs.chunks - 1) * self.loads[Layout.TOKENS] * tokens
        mapped += knobs.rows // LINE_TILE * len(self.program.group_reads)
        return tiles * tokens * 4 + step * 4 + mapped

    def shared_bytes(self, knobs: SlicedK) -> int:
        """Return the shared memory of one block."""
        return self.arrangement(knobs).peak

    def arrangement(self, knobs: SlicedK, *, whole: bool = False) -> Arrangement:
        """Return where the ring and what meets after the loop lie in shared memory.

        All of it is taken to be read until the last epoch, that of the epilogue. `whole`: as if all
        of a step had 16 bits.
        """
        ring = knobs.warps * knobs.stages * self.vectors(knobs, whole=whole) * 16 * WARP_LANES
        end = max((a.since for a in self.areas), default=0) + 2
        buffers = [
            Buffer(a.name, a.bytes(knobs), frozenset(range(max(a.since, 0), end)))
            for a in self.areas
        ]
        first = sum(a.since < 0 for a in self.areas)
        buffers.insert(first, Buffer(RING, ring, frozenset({0})))
        return arrange(buffers)

    def arranged(self, knobs: SlicedK) -> Arranged:
        """Return what a block is: each warp takes slices of the depth, in stages of its own.

        The interpreter's memory has no cells of one byte: an element of 8 bits has one of two.
        """
        found = self.arrangement(knobs, whole=True)
        step = self.vectors(knobs, whole=True) * 16 * WARP_LANES
        return Arranged(
            knobs.block_tiles(self.program.roles),
            slices=knobs.warps,
            depth=knobs.chunks * CHUNK_DEPTH,
            stages=knobs.stages,
            step_bytes=step,
            slice_bytes=knobs.stages * step,
            bytes=found.peak,
            offsets=found.offsets,
        )

    def few_registers(self, knobs: SlicedK) -> bool:
        """Say whether a thread's registers do not spill."""
        most = loop.REGISTERS_BESIDE_PRODUCERS if self.program.received else loop.REGISTERS_LEFT
        return self.registers(knobs) <= most

    def fits(self, knobs: SlicedK, on: Target) -> bool:
        """Say whether a block has what it needs, and all its warps work."""
        return (
            knobs.step_depth <= max(self.depth, WARP_LANES)
            and knobs.stages - 1 <= ceil(self.depth / knobs.step_depth)
            and self.few_registers(knobs)
            and self.shared_bytes(knobs) <= on.shared_bytes
        )


# -- the rule, and what is tried -------------------------------------------------------------------


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why sliced-K does not fit a program: it takes every one whose loop reads lines."""
    if not program.loop:
        return ("it has no loop",)
    beside = program.also or program.producers or program.received
    if program.group_reads and program.lines:
        return ("groups of rows are not planned beside sums of whole tokens",)
    reason = loop.bytes_reason(program) if beside else ()
    return (*loop.columns_reason(program), *reason)


def choose(program: TileProgram, tokens: int, on: Target) -> SlicedK | None:
    """Return the knobs for a bucket; raises PlanError where no block can hold so many tokens."""
    most = max(BUCKETS_WITH_STATISTICS if program.statistics else loop.BUCKETS)
    if tokens > most:
        return None
    return next(_with_producers(program, _alone(program, tokens, on), on))


def candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[SlicedK]:
    """Yield knobs to try for a bucket, all of which arrange shared memory as the rule's do."""
    block = Footprint.of(program)
    tile = block.row_tile
    below = block.arrangement(_alone(program, loop.BUCKETS[0], on)).below
    for rows in range(tile, ceil(block.rows / tile) * tile + 1, tile):
        if not block.few_registers(SlicedK(tokens, rows, 4, min(block.chunks), 2)):
            return
        for warps, chunks, stages in product(WARPS, block.chunks, STAGES):
            knobs = SlicedK(tokens, rows, warps, chunks, stages)
            if block.fits(knobs, on) and block.arrangement(knobs).below == below:
                yield from _with_producers(program, knobs, on)


def _alone(program: TileProgram, tokens: int, on: Target) -> SlicedK:
    """Return the rule's knobs without producer blocks."""
    block = Footprint.of(program)
    waves = range(1, -(-block.rows // on.multiprocessors) + 1)
    by_wave = [loop.rows_for(block.rows, on.multiprocessors * n, block.row_tile) for n in waves]
    tried = product(dict.fromkeys(by_wave), block.chunks[::-1])  # rows of a block, chunks of a step
    best_first = sorted(tried, key=lambda size: -size[1]) if tokens <= loop.FEW_TOKENS else tried
    for block_rows, chunks in best_first:
        knobs = SlicedK(tokens, block_rows, warps=8, chunks=chunks, stages=2)
        smallest = block.shared_bytes(replace(knobs, warps=4))
        if block.few_registers(knobs) and smallest <= on.shared_bytes:
            return _with_stages(block, knobs, on.shared_bytes)
    raise PlanError(
        f"{tokens} tokens and {block.row_tile} rows need more registers or shared memory than a "
        "block has"
    )


def _with_stages(block: Footprint, knobs: SlicedK, limit: int) -> SlicedK:
    """Return the knobs with warps and stages that fit `limit` bytes."""
    if block.shared_bytes(knobs) > limit:
        knobs = replace(knobs, warps=4)
    passes = -(-block.depth // knobs.step_depth)
    most = MOST_EIGHT_BIT_BYTES if block.program.byte_rows else MOST_BYTES_IN_FLIGHT
    most = MOST_BYTES_BESIDE_PRODUCERS if block.program.received else most
    step_bytes = knobs.step_depth * knobs.rows * block.weight_bytes
    if block.program.byte_rows:
        step_bytes += knobs.step_depth * knobs.tokens * block.loads[Layout.TOKENS] * 2
    for stages in range(3, passes + 2):
        deeper = replace(knobs, stages=stages)
        if block.shared_bytes(deeper) > limit or step_bytes * (stages - 1) > most:
            break
        knobs = deeper
    return knobs


def _with_producers(program: TileProgram, knobs: SlicedK, on: Target) -> Iterator[SlicedK]:
    """Yield the knobs with those of producer blocks, if the program has any, the best first.

    As many stages as fit: a producer should not wait for memory more often than it must.
    """
    if (made := program.producers) is None:
        yield knobs
        return
    block = Footprint(made)
    for tile in producer_tiles(program, knobs.tokens, on)[:PRODUCER_TILES]:
        few = replace(knobs, producers=loop.Producers(*tile, 2))
        steps = ceil(block.depth / few.producer_knobs.step_depth)
        tried = [replace(knobs, producers=loop.Producers(*tile, n)) for n in range(2, steps + 2)]
        limit = on.shared_bytes - TAG_BYTES
        yield [k for k in tried if block.shared_bytes(k.producer_knobs) <= limit][-1]


# -- the predicted time (schedules/latency.py) -----------------------------------------------------


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program."""
    work, block = Streaming(program.streamed, on), Footprint.of(program)

    def model(knobs: SlicedK, tokens: int) -> float:
        most = work.most_blocks(knobs)
        shared = (on.shared_bytes + loop.RESERVED_BYTES) // (
            block.shared_bytes(knobs) + loop.RESERVED_BYTES
        )
        registers = (block.registers(knobs) + ADDRESS_REGISTERS) * knobs.warps * WARP_LANES
        at_once = min(max(1, min(shared, on.registers // registers)), most)  # of the blocks
        token_bytes = TOKEN_BYTES * (1 + (BESIDE if at_once > 1 else 0.0))
        taken = _weights_us(work, knobs, at_once) + work.tokens_us(knobs, token_bytes)
        lines = block.sums[Layout.ACCUM] * ceil(knobs.rows / loop.ROW_TILE) + block.inner_tiles
        tiles = lines * ceil(knobs.tokens / LINE_TILE) * work.depth / loop.ROW_TILE
        few_warps = knobs.warps * at_once <= SCHEDULERS
        cycles = ALONE_CYCLES if few_warps else TOGETHER_CYCLES
        issued = most * (tiles / SCHEDULERS * cycles / work.clock)
        streamed = START_US + max(taken, issued) + WAVE_US * (ceil(most / at_once) - 1)
        streamed += work.vectors_us(VECTOR_CYCLES)
        met = sum(a.bytes(knobs) for a in block.areas if a.partial)  # written, and read
        streamed += most * 2 * met / WAVEFRONT_BYTES / work.clock
        streamed += FEW_WARPS_US * few_warps
        if program.statistics:
            streamed += STATISTICS_US * most * knobs.tokens / knobs.warps
        return work.beside_producers_us(knobs, streamed)

    return model


def _weights_us(work: Streaming, knobs: SlicedK, at_once: int) -> float:
    """Return the time in which weights come: from memory, and to the busiest multiprocessor."""
    own, step = work.read_bytes(knobs, rows=True), knobs.step_depth
    passes = ceil(work.depth / step)
    stretch = passes * step / work.depth  # warps without work in the last pass
    in_flight = at_once * min(knobs.stages - 1, passes) * own * step / work.depth
    computed = any(s.do is Do.MAP for s in work.program.loop)
    enough = COMPUTED_IN_FLIGHT if computed else IN_FLIGHT
    segments = HALF_SEGMENTS if knobs.chunks == 1 else 1.0
    if knobs.chunks == 1 and knobs.rows % loop.ROW_TILE:
        segments = ODD_SEGMENTS
    return segments * work.weights_us(knobs, min(1.0, in_flight / enough) / stretch)


SCHEDULE = Ranked(
    knobs=SlicedK,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=lambda program, knobs: Footprint.of(program).registers(knobs),
    shared_bytes=lambda program, knobs: Footprint.of(program).shared_bytes(knobs),
    predict=predict,
    arranged=lambda program, knobs: Footprint.of(program).arranged(knobs),
)
