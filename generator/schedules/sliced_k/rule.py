"""Which knobs a sliced-K kernel has for a bucket of tokens, by rule and to be tried; its time.

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
from dataclasses import replace
from itertools import product
from math import ceil

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.hardware import WAVEFRONT_BYTES
from mirage_kernels.generator.plan.layouts import LINE_TILE, WARP_LANES
from mirage_kernels.generator.plan.program import Do, Layout, Roles, TileProgram
from mirage_kernels.generator.schedules.latency import TOKEN_BYTES, WAVE_US, Model, Streaming
from mirage_kernels.generator.schedules.loop import (
    BUCKETS,
    FEW_TOKENS,
    RESERVED_BYTES,
    ROW_TILE,
    Producers,
    lowered,
    own,
    rows_for,
)
from mirage_kernels.generator.schedules.producer_blocks import STAMP_BYTES, producer_tiles
from mirage_kernels.generator.schedules.schedule import Knobs, Ranked
from mirage_kernels.generator.schedules.sliced_k.knobs import CHUNK_DEPTH, Footprint, SlicedK
from mirage_kernels.generator.target import Target

# Statistics of a norm read every token once more, in every block: 20 us against 11 at 32 tokens, 40
# against 14 at 64 (K = N = 4096), where PyTorch takes 20.
BUCKETS_WITH_STATISTICS = (8, 16, 32)
MOST_BYTES_IN_FLIGHT = 96 * 1024  # of weights, per multiprocessor: more was slightly worse
MOST_BYTES_BESIDE_PRODUCERS = 32 * 1024
WARPS, CHUNKS, STAGES = (4, 8), (1, 2), (2, 3, 4, 5, 6)
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


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why sliced-K does not fit a program: it takes every one with a loop."""
    return () if program.loop else ("it has no loop",)


def choose(program: TileProgram, tokens: int, on: Target) -> SlicedK | None:
    """Return the knobs for a bucket; raises PlanError where no block can hold so many tokens."""
    most = max(BUCKETS_WITH_STATISTICS if program.statistics else BUCKETS)
    if tokens > most:
        return None
    return next(_with_producers(program, _alone(program, tokens, on), on))


def candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[SlicedK]:
    """Yield knobs to try for a bucket, all of which arrange shared memory as the rule's do."""
    footprint = Footprint.of(program)
    all_rows, tile = program.extents[program.roles.rows], footprint.row_tile
    below = footprint.arrangement(_alone(program, BUCKETS[0], on)).below
    for rows in range(tile, ceil(all_rows / tile) * tile + 1, tile):
        if footprint.registers(SlicedK(tokens, rows, 4, 1, 2)) > footprint.most_registers:
            return
        for warps, chunks, stages in product(WARPS, CHUNKS, STAGES):
            knobs = SlicedK(tokens, rows, warps, chunks, stages)
            fits = _fits_block(footprint, knobs, on)
            if fits and footprint.arrangement(knobs).below == below:
                yield from _with_producers(program, knobs, on)


def _alone(program: TileProgram, tokens: int, on: Target) -> SlicedK:
    """Return the rule's knobs without producer blocks."""
    footprint, all_rows = Footprint.of(program), program.extents[program.roles.rows]
    waves = range(1, -(-all_rows // on.multiprocessors) + 1)
    by_wave = [rows_for(all_rows, on.multiprocessors * n, footprint.row_tile) for n in waves]
    tried = product(dict.fromkeys(by_wave), (2, 1))  # rows of a block, chunks of a step
    best_first = sorted(tried, key=lambda size: -size[1]) if tokens <= FEW_TOKENS else tried
    for block_rows, chunks in best_first:
        knobs = SlicedK(tokens, block_rows, warps=8, chunks=chunks, stages=2)
        smallest = footprint.shared_bytes(replace(knobs, warps=4))
        if footprint.registers(knobs) <= footprint.most_registers and smallest <= on.shared_bytes:
            return _with_stages(footprint, knobs, on.shared_bytes)
    few = footprint.row_tile
    raise PlanError(
        f"{tokens} tokens and {few} rows need more registers or shared memory than a block has"
    )


def _with_stages(footprint: Footprint, knobs: SlicedK, limit: int) -> SlicedK:
    """Return the knobs with warps and stages that fit `limit` bytes."""
    if footprint.shared_bytes(knobs) > limit:
        knobs = replace(knobs, warps=4)
    program = footprint.program
    passes = -(-program.extents[program.roles.depth] // knobs.step_depth)
    most = MOST_BYTES_BESIDE_PRODUCERS if program.received else MOST_BYTES_IN_FLIGHT
    lines = knobs.rows * footprint.loads[Layout.ROWS]
    in_flight = knobs.warps * knobs.chunks * CHUNK_DEPTH * 2 * lines  # of every stage but one
    for stages in range(3, passes + 2):
        deeper = replace(knobs, stages=stages)
        if footprint.shared_bytes(deeper) > limit or in_flight * (stages - 1) > most:
            break
        knobs = deeper
    return knobs


def _fits_block(footprint: Footprint, knobs: SlicedK, on: Target) -> bool:
    """Say whether a block has what it needs, and all its warps work."""
    program, step = footprint.program, knobs.step_depth
    depth = program.extents[program.roles.depth]
    return (
        step <= max(depth, WARP_LANES)
        and knobs.stages - 1 <= ceil(depth / step)
        and footprint.registers(knobs) <= footprint.most_registers
        and footprint.shared_bytes(knobs) <= on.shared_bytes
    )


def _with_producers(program: TileProgram, knobs: SlicedK, on: Target) -> Iterator[SlicedK]:
    """Yield the knobs with those of producer blocks, if the program has any, the best first.

    As many stages as fit: a producer should not wait for memory more often than it must.
    """
    if (made := program.producers) is None:
        yield knobs
        return
    footprint, depth = Footprint(made), made.extents[made.roles.depth]
    for tile in producer_tiles(program, knobs.tokens, on)[:PRODUCER_TILES]:
        few = replace(knobs, producers=Producers(*tile, 2))
        steps = ceil(depth / few.producer_knobs.step_depth)
        tried = [replace(knobs, producers=Producers(*tile, n)) for n in range(2, steps + 2)]
        limit = on.shared_bytes - STAMP_BYTES
        yield [k for k in tried if footprint.shared_bytes(k.producer_knobs) <= limit][-1]


# -- the predicted time (schedules/latency.py) -----------------------------------------------------


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program."""
    work, footprint = Streaming.of(program, on), Footprint.of(program)

    def model(knobs: Knobs, tokens: int) -> float:
        assert isinstance(knobs, SlicedK)
        most = work.most_blocks(knobs)
        at_once = min(_resident(footprint, knobs, on), most)
        token_bytes = TOKEN_BYTES * (1 + (BESIDE if at_once > 1 else 0.0))
        taken = _weights_us(work, knobs, at_once) + work.tokens_us(knobs, token_bytes)
        issued = most * _products_us(work, footprint, knobs, at_once)
        streamed = START_US + max(taken, issued) + WAVE_US * (ceil(most / at_once) - 1)
        streamed += work.vectors_us(VECTOR_CYCLES)
        met = sum(a.bytes(knobs) for a in footprint.areas if a.partial)  # written, and read
        streamed += most * 2 * met / WAVEFRONT_BYTES / work.clock
        streamed += FEW_WARPS_US * (knobs.warps * at_once <= SCHEDULERS)
        if program.statistics:
            streamed += STATISTICS_US * most * knobs.tokens / knobs.warps
        return work.beside_producers_us(knobs, streamed)

    return model


def _resident(footprint: Footprint, knobs: SlicedK, on: Target) -> int:
    """Return how many blocks a multiprocessor holds at once."""
    shared = footprint.shared_bytes(knobs) + RESERVED_BYTES
    registers = (footprint.registers(knobs) + ADDRESS_REGISTERS) * knobs.warps * WARP_LANES
    fitting = (on.shared_bytes + RESERVED_BYTES) // shared
    return max(1, min(fitting, on.registers // registers))


def _weights_us(work: Streaming, knobs: SlicedK, at_once: int) -> float:
    """Return the time in which weights come: from memory, and to the busiest multiprocessor."""
    own, step = work.read_bytes(knobs, rows=True), knobs.step_depth
    passes = ceil(work.depth / step)
    stretch = passes * step / work.depth  # warps without work in the last pass
    in_flight = at_once * min(knobs.stages - 1, passes) * own * step / work.depth
    computed = any(s.do is Do.MAP for s in work.program.loop)
    enough = COMPUTED_IN_FLIGHT if computed else IN_FLIGHT
    segments = HALF_SEGMENTS if knobs.chunks == 1 else 1.0
    if knobs.chunks == 1 and knobs.rows % ROW_TILE:
        segments = ODD_SEGMENTS
    return segments * work.weights_us(knobs, min(1.0, in_flight / enough) / stretch)


def _products_us(work: Streaming, footprint: Footprint, knobs: SlicedK, at_once: int) -> float:
    """Return the time in which a block's warps issue their products."""
    lines = footprint.products * ceil(knobs.rows / ROW_TILE) + footprint.inner_tiles
    tiles = lines * ceil(knobs.tokens / LINE_TILE) * work.depth / ROW_TILE
    alone = knobs.warps * at_once <= SCHEDULERS
    cycles = ALONE_CYCLES if alone else TOGETHER_CYCLES
    return tiles / SCHEDULERS * cycles / work.clock


SCHEDULE = Ranked(
    name=SlicedK.schedule,
    knobs=SlicedK,
    roles=Roles,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=lambda program, knobs: Footprint.of(program).registers(own(SlicedK, knobs)),
    shared_bytes=lambda program, knobs: Footprint.of(program).shared_bytes(own(SlicedK, knobs)),
    predict=predict,
)
