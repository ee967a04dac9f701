"""Sliced-K: every warp of a block takes slices of the depth, by mma from a multistage pipeline."""

from __future__ import annotations

from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.loop import lowered
from mirage_kernels.generator.schedules.schedule import Knobs, Schedule
from mirage_kernels.generator.schedules.sliced_k.block import Footprint
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK
from mirage_kernels.generator.schedules.sliced_k.latency import predict
from mirage_kernels.generator.schedules.sliced_k.rule import candidates, choose
from mirage_kernels.generator.target import Target


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why sliced-K does not fit a program: it takes every one with a loop."""
    return () if program.loop else ("it has no loop",)


def registers(program: TileProgram, knobs: Knobs) -> int:
    """Return the registers of a thread."""
    assert isinstance(knobs, SlicedK)
    return Footprint.of(program).registers(knobs)


def shared_bytes(program: TileProgram, knobs: Knobs) -> int:
    """Return the shared memory of one block."""
    assert isinstance(knobs, SlicedK)
    return Footprint.of(program).shared_bytes(knobs)


SCHEDULE = Schedule(
    name=SlicedK.schedule,
    knobs=SlicedK,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=registers,
    shared_bytes=shared_bytes,
    predict=predict,
)
