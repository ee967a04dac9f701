"""Which knobs a sliced-K kernel has for a bucket of tokens, by rule and to be tried.

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
from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.loop import BUCKETS, FEW_TOKENS, Producers
from mirage_kernels.generator.schedules.producer_blocks import (
    ROW_TILE,
    STAMP_BYTES,
    TOKEN_TILE,
    consumer_program,
    producer_program,
    producer_tile,
    rows_for,
)
from mirage_kernels.generator.schedules.sliced_k.block import Footprint
from mirage_kernels.generator.schedules.sliced_k.knobs import CHUNK_DEPTH, SlicedK
from mirage_kernels.generator.target import Target

# Statistics of a norm read every token once more, in every block: 20 us against 11 at 32 tokens, 40
# against 14 at 64 (K = N = 4096), where PyTorch takes 20.
BUCKETS_WITH_STATISTICS = (8, 16, 32)
MOST_BYTES_IN_FLIGHT = 96 * 1024  # of weights, per multiprocessor: more was slightly worse
MOST_BYTES_BESIDE_PRODUCERS = 32 * 1024
WARPS, CHUNKS, STAGES = (4, 8), (1, 2), (2, 3, 4, 5, 6)
PRODUCER_TILES = 2  # tiles of producers tried, those with the fewest lines


def choose(program: TileProgram, tokens: int, on: Target) -> SlicedK | None:
    """Return the knobs for a bucket; raises PlanError where no block can hold so many tokens."""
    most = max(BUCKETS_WITH_STATISTICS if program.statistics else BUCKETS)
    return None if tokens > most else with_producers(program, _alone(program, tokens, on), on)


def _alone(program: TileProgram, tokens: int, on: Target) -> SlicedK:
    extents, footprint = program.extents, Footprint.of(program)
    rows, depth = extents[program.roles.rows], extents[program.roles.depth]
    for block_rows, chunks in _sizes(tokens, rows_by_wave(rows, footprint.row_tile, on)):
        knobs = SlicedK(tokens, block_rows, warps=8, chunks=chunks, stages=2)
        smallest = footprint.shared_bytes(replace(knobs, warps=4))
        if footprint.registers(knobs) <= footprint.most_registers and smallest <= on.shared_bytes:
            return _with_stages(footprint, knobs, depth, on.shared_bytes)
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


def _with_stages(footprint: Footprint, knobs: SlicedK, depth: int, limit: int) -> SlicedK:
    """Return the knobs with warps and stages that fit `limit` bytes."""
    if footprint.shared_bytes(knobs) > limit:
        knobs = replace(knobs, warps=4)
    per_warp = -(-depth // knobs.step_depth)
    most = MOST_BYTES_BESIDE_PRODUCERS if footprint.receives else MOST_BYTES_IN_FLIGHT
    row_bytes = knobs.chunks * CHUNK_DEPTH * 2 * knobs.rows * footprint.row_loads
    while True:
        deeper = replace(knobs, stages=knobs.stages + 1)
        in_flight = deeper.warps * (deeper.stages - 1) * row_bytes
        fits = footprint.shared_bytes(deeper) <= limit and in_flight <= most
        if not fits or deeper.stages - 1 > per_warp:
            return knobs
        knobs = deeper


def with_producers(
    program: TileProgram, knobs: SlicedK, on: Target, tile: tuple[int, int] | None = None
) -> SlicedK:
    """Return the knobs with those of producer blocks, if the program has any.

    They have the rows and tokens of `tile`, else the fewest lines. As many stages as fit: a
    producer should not wait for memory more often than it must.
    """
    if not program.producer_blocks:
        return knobs
    made = producer_program(program)
    extents, footprint = made.extents, Footprint.of(made)
    rows, tokens = tile or producer_tile(
        extents[made.roles.rows], knobs.tokens, program.producer_blocks
    )
    few = Producers(rows, tokens, 2)
    steps = -(-extents[made.roles.depth] // knobs.of_producers(few).step_depth)
    fitting = [
        deep
        for deep in (replace(few, stages=n) for n in range(2, steps + 2))
        if footprint.shared_bytes(knobs.of_producers(deep)) + STAMP_BYTES <= on.shared_bytes
    ]
    return replace(knobs, producers=fitting[-1])


def candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[SlicedK]:
    """Yield knobs to try for a bucket, all of which arrange shared memory as the rule's do."""
    footprint, consumers = Footprint.of(program), consumer_program(program)
    all_rows, tile = program.extents[program.roles.rows], footprint.row_tile
    below = footprint.arrangement(_alone(program, BUCKETS[0], on)).below
    for rows in range(tile, ceil(all_rows / tile) * tile + 1, tile):
        if footprint.registers(SlicedK(tokens, rows, 4, 1, 2)) > footprint.most_registers:
            return
        for warps, chunks, stages in product(WARPS, CHUNKS, STAGES):
            knobs = SlicedK(tokens, rows, warps, chunks, stages)
            fits = _fits_block(consumers, footprint, knobs, on)
            if fits and footprint.arrangement(knobs).below == below:
                yield from _with_tiles(program, knobs, on)


def _fits_block(program: TileProgram, footprint: Footprint, knobs: SlicedK, on: Target) -> bool:
    """Say whether a block has what it needs, and all its warps work."""
    depth, step = program.extents[program.roles.depth], knobs.step_depth
    return (
        step <= max(depth, WARP_LANES)
        and knobs.stages - 1 <= ceil(depth / step)
        and footprint.registers(knobs) <= footprint.most_registers
        and footprint.shared_bytes(knobs) <= on.shared_bytes
    )


def _with_tiles(program: TileProgram, knobs: SlicedK, on: Target) -> Iterator[SlicedK]:
    """Yield knobs with those of producer blocks, if the program has any."""
    if not program.producer_blocks:
        yield knobs
        return
    made = producer_program(program)
    inner = made.extents[made.roles.rows]
    halves = [knobs.tokens >> i for i in range(knobs.tokens.bit_length())]
    tiles = [
        (rows, tokens)
        for rows in range(ROW_TILE, inner + ROW_TILE, ROW_TILE)
        for tokens in halves
        if tokens % TOKEN_TILE == 0
        and ceil(inner / rows) * (knobs.tokens // tokens) <= program.producer_blocks
    ]
    for tile in sorted(tiles, key=lambda t: (sum(t), t))[:PRODUCER_TILES]:
        yield with_producers(program, knobs, on, tile)
