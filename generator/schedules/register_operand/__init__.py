"""Register-operand wgmma (RS): tokens are stationary in registers, weights stream past them."""

from __future__ import annotations

from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.loop import lowered
from mirage_kernels.generator.schedules.producer_blocks import consumer_program
from mirage_kernels.generator.schedules.prologue import has_prologue, main_program
from mirage_kernels.generator.schedules.register_operand.block import RegisterBlock, can_run
from mirage_kernels.generator.schedules.register_operand.knobs import RegisterOperand
from mirage_kernels.generator.schedules.register_operand.latency import predict
from mirage_kernels.generator.schedules.register_operand.rule import candidates, choose
from mirage_kernels.generator.schedules.schedule import Knobs, Schedule
from mirage_kernels.generator.schedules.warpgroups import reasons_against
from mirage_kernels.generator.target import Target


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why register operands do not fit a program."""
    runs = has_prologue(program, on) or can_run(consumer_program(program))
    form = () if runs else ("its loop computes with weights before it multiplies them",)
    return (*reasons_against(on), *form)


def _block(program: TileProgram, knobs: Knobs) -> RegisterBlock:
    assert isinstance(knobs, RegisterOperand)
    own = main_program(program) if knobs.prologue_warps else program
    return RegisterBlock.of(own).of_knobs(knobs)


def registers(program: TileProgram, knobs: Knobs) -> int:
    """Return the registers of a thread that multiplies."""
    return _block(program, knobs).registers


def shared_bytes(program: TileProgram, knobs: Knobs) -> int:
    """Return the shared memory of one block."""
    assert isinstance(knobs, RegisterOperand)
    return _block(program, knobs).shared_bytes(knobs.stages)


SCHEDULE = Schedule(
    name=RegisterOperand.schedule,
    knobs=RegisterOperand,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=registers,
    shared_bytes=shared_bytes,
    predict=predict,
)
