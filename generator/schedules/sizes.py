"""The shared memory of each kind of block that a kernel launches, in bytes."""

from __future__ import annotations

from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules import SCHEDULES
from mirage_kernels.generator.schedules.loop import Producers
from mirage_kernels.generator.schedules.producer_blocks import (
    PAIR,
    STAMP_BYTES,
    producer_program,
)
from mirage_kernels.generator.schedules.register_operand.knobs import RegisterOperand
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK


def shared_bytes(program: TileProgram, knobs: Knobs) -> int:
    """Return what a block takes."""
    return SCHEDULES[knobs.schedule].shared_bytes(program, knobs)


def registers(program: TileProgram, knobs: Knobs) -> int:
    """Return what a thread takes."""
    return SCHEDULES[knobs.schedule].registers(program, knobs)


def producers_of(knobs: Knobs) -> Producers | None:
    """Return the knobs of producer blocks, None where a launch has none."""
    return knobs.producers if isinstance(knobs, SlicedK | RegisterOperand) else None


def prologue_warps(knobs: Knobs) -> int:
    """Return the warps of a block of the prologue kernel; 0: there is none."""
    return knobs.prologue_warps if isinstance(knobs, RegisterOperand) else 0


def producers_bytes(program: TileProgram, knobs: Knobs) -> int:
    """Return what a producer block takes."""
    made = producer_program(program)
    if isinstance(knobs, SlicedK) and knobs.producers:
        return shared_bytes(made, knobs.of_producers(knobs.producers)) + STAMP_BYTES
    assert isinstance(knobs, RegisterOperand)
    p = knobs.producers
    assert p is not None
    pair = RegisterOperand(p.tokens, PAIR * p.rows, p.stages, p.groups, PAIR)
    return shared_bytes(made, pair) + STAMP_BYTES
