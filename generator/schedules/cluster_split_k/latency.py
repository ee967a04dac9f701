"""The predicted time of cluster split-K (`schedules/latency.py`)."""

from __future__ import annotations

from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.cluster_split_k.block import SplitBlock
from mirage_kernels.generator.schedules.cluster_split_k.knobs import BLOCKS, ClusterSplitK
from mirage_kernels.generator.schedules.latency import (
    SHOWN,
    TOKEN_BYTES,
    WAVE_US,
    Model,
    Streaming,
)
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.warpgroups import BOX_DEPTH
from mirage_kernels.generator.target import Target

START_US = 2.0  # and end
STEP_CYCLES, COMPUTED_CYCLES = 250.0, 600.0  # per 64 elements of the depth, as tiles lie, computed
VECTOR_CYCLES = 1.8  # per element of the depth, where vectors along it are computed


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program."""
    work, block = Streaming.of(program, on), SplitBlock.of(program)

    def model(knobs: Knobs, tokens: int) -> float:
        assert isinstance(knobs, ClusterSplitK)
        most = work.most_blocks(knobs)
        taken = most * work.read_bytes(knobs, rows=True) / work.port(knobs)
        taken = max(work.memory_us(knobs), taken)
        taken += most * work.read_bytes(knobs, rows=False) / (TOKEN_BYTES * work.clock)
        issued = most * _products_us(work, block.sized(knobs.rows, knobs.tokens))
        streamed = START_US + max(taken, issued) + SHOWN * issued
        return streamed + WAVE_US * (most - 1) + work.vectors_us(VECTOR_CYCLES)

    return model


def _products_us(work: Streaming, block: SplitBlock) -> float:
    """Return the time in which a block's warpgroups issue their products."""
    steps = work.depth / (BLOCKS * BOX_DEPTH)
    cycles = COMPUTED_CYCLES if block.computed_rows else STEP_CYCLES
    return work.products * steps / block.turns * block.tiles * cycles / work.clock
