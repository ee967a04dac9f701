"""What lies where in the shared memory of blocks with tokens in registers."""

from __future__ import annotations

from mirage_kernels.generator.plan.arranged import Arranged
from mirage_kernels.generator.plan.program import Layout, Statement, TileProgram
from mirage_kernels.generator.schedules import tma
from mirage_kernels.generator.schedules.register_operand.block import RegisterOperand


def beside(program: TileProgram) -> tuple[Statement, ...]:
    """Return what is kept beside the ring: tiles of weights, and what other blocks send."""
    return (*program.fetches, *program.received, *(program.products if program.received else ()))


def in_place(program: TileProgram) -> list[Statement]:
    """Return what meets where the ring was: all but sums of tokens alone, which lie beside it."""
    return [s for s in program.reductions if s.layout is not Layout.TOKEN_SUMS]


def late(program: TileProgram) -> tuple[Statement, ...]:
    """Return what lies behind these sums: what is kept of them, and its products."""
    return (*program.kept, *(() if program.received else program.products))


def arranged(program: TileProgram, knobs: RegisterOperand) -> Arranged:
    """Return what the blocks of a cluster are together: warpgroups in turns have a slice each."""
    met = in_place(program)
    others = [*beside(program), *(s for s in program.reductions if s not in met)]
    found = tma.arranged(program, knobs, (knobs.turns, knobs.slice_depth), others)
    return found.with_values([*met, *late(program)], program, at=0)
