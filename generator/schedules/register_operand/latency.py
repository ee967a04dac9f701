"""The predicted time of register-operand wgmma (`schedules/latency.py`)."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from mirage_kernels.generator.plan.layouts import WARP_LANES
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.latency import (
    ROW_WARP_US,
    SHOWN,
    WAVE_US,
    Model,
    Streaming,
    beside_producers_us,
)
from mirage_kernels.generator.schedules.loop import ALIGNED_ELEMENTS
from mirage_kernels.generator.schedules.producer_blocks import ROW_TILE
from mirage_kernels.generator.schedules.prologue import has_prologue, main_program
from mirage_kernels.generator.schedules.register_operand.block import RegisterBlock
from mirage_kernels.generator.schedules.register_operand.knobs import BOXES, RegisterOperand
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.warpgroups import BOX_DEPTH
from mirage_kernels.generator.target import Target

START_US = 1.5  # and end
IN_FLIGHT = 24 * 1024  # of weights, by multiprocessor: fewer bytes wait for their latency
BOX_TOKEN_BYTES = 115.0  # the same by boxes for tokens that are held in registers
STEP_CYCLES = 250.0  # per 64 elements of the depth
# Per element of the depth, where vectors along it are computed: by blocks alone, in pairs.
VECTOR_CYCLES, PAIRED_VECTOR_CYCLES = 0.5, 1.8
PAIRED_ROW_US = 0.012  # of register operands in pairs: sums cross, beside no producers
INNER_US, INNER_CYCLES = 1.0, 2.4  # what held tokens pay for totals of inner lines, per element
PROLOGUE_US = 1.3  # what a prologue kernel adds, beside its warps


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program."""
    alone = _model(program, on)
    if not has_prologue(program, on):
        return alone
    main, depth = _model(main_program(program), on), program.extents[program.roles.depth]

    def model(knobs: Knobs, tokens: int) -> float:
        assert isinstance(knobs, RegisterOperand)
        if not knobs.prologue_warps:
            return alone(knobs, tokens)
        chunks = ceil(depth / (knobs.prologue_warps * WARP_LANES * ALIGNED_ELEMENTS))
        prologue = PROLOGUE_US + ROW_WARP_US * (knobs.prologue_warps + chunks)
        return prologue + main(replace(knobs, prologue_warps=0), tokens)

    return model


def _model(program: TileProgram, on: Target) -> Model:
    work, block = Streaming.of(program, on), RegisterBlock.of(program)

    def model(knobs: Knobs, tokens: int) -> float:
        assert isinstance(knobs, RegisterOperand)
        most, own = work.most_blocks(knobs), work.read_bytes(knobs, rows=True)
        deep = (knobs.stages - 1) * own * BOXES * BOX_DEPTH * knobs.blocks / work.depth
        port = work.port(knobs) * min(1.0, deep / IN_FLIGHT)
        taken = max(work.memory_us(knobs), most * own / port)
        taken += most * work.read_bytes(knobs, rows=False) / (BOX_TOKEN_BYTES * work.clock)
        issued = most * _products_us(work, knobs)
        streamed = START_US + max(taken, issued) + SHOWN * issued + WAVE_US * (most - 1)
        streamed += work.vectors_us(PAIRED_VECTOR_CYCLES if knobs.blocks > 1 else VECTOR_CYCLES)
        if knobs.blocks > 1 and not knobs.producers:
            streamed += PAIRED_ROW_US * knobs.rows
        if block.inner_lines:
            streamed += INNER_US + INNER_CYCLES * block.inner_lines * knobs.tokens / work.clock
        return beside_producers_us(work, knobs, knobs.producers, streamed)

    return model


def _products_us(work: Streaming, knobs: RegisterOperand) -> float:
    """Return the time in which a block's warpgroups issue their products."""
    steps = work.depth / (knobs.blocks * BOX_DEPTH)
    share = knobs.rows / (4 * ROW_TILE) / knobs.groups  # of a group, in products of 64 lines
    return work.products * steps * share * STEP_CYCLES / work.clock
