"""The predicted time of sliced-K (`schedules/latency.py`)."""

from __future__ import annotations

from math import ceil

from mirage_kernels.generator.plan.hardware import WAVEFRONT_BYTES
from mirage_kernels.generator.plan.layouts import LINE_TILE, WARP_LANES
from mirage_kernels.generator.plan.program import Do, TileProgram
from mirage_kernels.generator.schedules.latency import (
    TOKEN_BYTES,
    WAVE_US,
    Model,
    Streaming,
    beside_producers_us,
)
from mirage_kernels.generator.schedules.loop import RESERVED_BYTES
from mirage_kernels.generator.schedules.producer_blocks import ROW_TILE
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.sliced_k.block import Footprint
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK
from mirage_kernels.generator.target import Target

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


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program."""
    work, footprint = Streaming.of(program, on), Footprint.of(program)

    def model(knobs: Knobs, tokens: int) -> float:
        assert isinstance(knobs, SlicedK)
        most = work.most_blocks(knobs)
        at_once = min(_resident(footprint, knobs, on), most)
        taken = _weights_us(work, knobs, most, at_once) + _tokens_us(work, knobs, most, at_once)
        issued = most * _products_us(work, footprint, knobs, at_once)
        streamed = START_US + max(taken, issued) + WAVE_US * (ceil(most / at_once) - 1)
        streamed += work.vectors_us(VECTOR_CYCLES) + _meeting_us(work, footprint, knobs, most)
        streamed += FEW_WARPS_US * (knobs.warps * at_once <= SCHEDULERS)
        if program.statistics:
            streamed += STATISTICS_US * most * knobs.tokens / knobs.warps
        return beside_producers_us(work, knobs, knobs.producers, streamed)

    return model


def _resident(footprint: Footprint, knobs: SlicedK, on: Target) -> int:
    """Return how many blocks a multiprocessor holds at once."""
    shared = footprint.shared_bytes(knobs) + RESERVED_BYTES
    registers = (footprint.registers(knobs) + ADDRESS_REGISTERS) * knobs.warps * WARP_LANES
    fitting = (on.shared_bytes + RESERVED_BYTES) // shared
    return max(1, min(fitting, on.registers // registers))


def _weights_us(work: Streaming, knobs: SlicedK, most: int, at_once: int) -> float:
    """Return the time in which weights come: from memory, and to the busiest multiprocessor."""
    own, step = work.read_bytes(knobs, rows=True), knobs.step_depth
    passes = ceil(work.depth / step)
    stretch = passes * step / work.depth  # warps without work in the last pass
    in_flight = at_once * min(knobs.stages - 1, passes) * own * step / work.depth
    computed = any(s.do is Do.MAP for s in work.consumers.loop)
    enough = COMPUTED_IN_FLIGHT if computed else IN_FLIGHT
    port = work.port(knobs) * min(1.0, in_flight / enough)
    segments = HALF_SEGMENTS if knobs.chunks == 1 else 1.0
    if knobs.chunks == 1 and knobs.rows % ROW_TILE:
        segments = ODD_SEGMENTS
    return segments * max(work.memory_us(knobs), most * own * stretch / port)


def _tokens_us(work: Streaming, knobs: SlicedK, most: int, at_once: int) -> float:
    """Return the time that blocks spend on what all of them read, from L2."""
    beside = BESIDE if at_once > 1 else 0.0
    again = work.read_bytes(knobs, rows=False)
    return most * again / (TOKEN_BYTES * work.clock * (1 + beside))


def _products_us(work: Streaming, footprint: Footprint, knobs: SlicedK, at_once: int) -> float:
    """Return the time in which a block's warps issue their products."""
    inner = sum(m.inner for m in footprint.meetings) // ROW_TILE
    lines = footprint.products * ceil(knobs.rows / ROW_TILE) + inner
    tiles = lines * ceil(knobs.tokens / LINE_TILE) * work.depth / ROW_TILE
    alone = knobs.warps * at_once <= SCHEDULERS
    cycles = ALONE_CYCLES if alone else TOGETHER_CYCLES
    return tiles / SCHEDULERS * cycles / work.clock


def _meeting_us(work: Streaming, footprint: Footprint, knobs: SlicedK, most: int) -> float:
    """Return the time in which a block's partial sums go to shared memory and are added up."""
    moved = sum(m.bytes(knobs) for m in footprint.meetings)
    return most * 2 * moved / WAVEFRONT_BYTES / work.clock
