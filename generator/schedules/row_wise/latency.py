"""The predicted time of row-wise kernels (`schedules/latency.py`)."""

from __future__ import annotations

from mirage_kernels.generator.plan.program import Do, TileProgram
from mirage_kernels.generator.schedules.latency import ELEMENT_BYTES, ROW_WARP_US, Model
from mirage_kernels.generator.schedules.row_wise.knobs import RowWise
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.target import Target

START_US = 1.9  # and end


def predict(program: TileProgram, on: Target) -> Model:
    """Return the model of a program."""
    statements = [s for s in program.lines if s.do in (Do.LOAD, Do.STORE)]
    rows = sum(program.roles.tokens in s.type.names for s in statements)
    row_us = rows * program.extents[program.roles.depth] * ELEMENT_BYTES / on.memory_bytes_per_us

    def model(knobs: Knobs, tokens: int) -> float:
        assert isinstance(knobs, RowWise)
        crowded = ROW_WARP_US * knobs.warps * max(1.0, tokens / on.multiprocessors)
        return START_US + row_us * tokens + crowded + knobs.chunks * ROW_WARP_US

    return model
