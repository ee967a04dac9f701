"""Row-wise and elementwise kernels: a block holds a row, or a tile of one without sums."""

from __future__ import annotations

from collections.abc import Iterator

from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules.loop import lowered
from mirage_kernels.generator.schedules.row_wise.knobs import (
    RowWise,
    elementwise_knobs,
    row_wise_knobs,
    whole_row_blocks,
)
from mirage_kernels.generator.schedules.row_wise.latency import predict
from mirage_kernels.generator.schedules.schedule import Knobs, Schedule
from mirage_kernels.generator.target import Target


def fits(program: TileProgram, on: Target) -> tuple[str, ...]:
    """Return why a row-wise kernel does not fit a program."""
    return ("it has a loop",) if program.loop else ()


def choose(program: TileProgram, size: int, on: Target) -> RowWise:
    """Return the knobs, the same for any number of tokens."""
    depth = program.extents[program.roles.depth]
    return elementwise_knobs(depth) if program.parted else row_wise_knobs(depth)


def candidates(program: TileProgram, size: int, on: Target) -> Iterator[RowWise]:
    """Yield blocks that hold a row each; a tile of one as the rule has it."""
    if program.parted:
        yield choose(program, size, on)
        return
    for warps, chunks in whole_row_blocks(program.extents[program.roles.depth]):
        yield RowWise(warps, chunks)


def registers(program: TileProgram, knobs: Knobs) -> int:
    """Return 0: a thread holds a few elements."""
    return 0


def shared_bytes(program: TileProgram, knobs: Knobs) -> int:
    """Return 0: sums of warps take a few static bytes."""
    return 0


SCHEDULE = Schedule(
    name=RowWise.schedule,
    knobs=RowWise,
    lower=lowered,
    fits=fits,
    choose=choose,
    candidates=candidates,
    registers=registers,
    shared_bytes=shared_bytes,
    predict=predict,
)
