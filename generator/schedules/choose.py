"""Which variants serve a program, by rule: for every bucket the first schedule that wants it.

Buckets of the dynamic dim are 8, 16, 32 and 64 tokens (the N side of the tensor-core instruction
comes in eights); above the last the grid's second axis covers the rest.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules import SCHEDULES
from mirage_kernels.generator.schedules.loop import ALIGNED_ELEMENTS, BUCKETS
from mirage_kernels.generator.schedules.producer_blocks import (
    consumer_program,
    with_producer_blocks,
)
from mirage_kernels.generator.schedules.prologue import has_prologue
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.schedules.sliced_k.rule import BUCKETS_WITH_STATISTICS
from mirage_kernels.generator.target import Target, target

# A result beside the output that the loop computes, x + residual: every block reads both. Up to 16
# tokens that costs 0.1 to 1.1 us, a kernel for the sum in front 1.1 to 3.7; at 32 tokens it costs 3
# to 6 (docs/planning.md).
BUCKETS_WITH_RESULTS = (8, 16)
ANY_SIZE = 0  # the bucket of a variant that serves any number of tokens


def programs_of(recipe: str, graph: Graph, arch: str) -> tuple[TileProgram, ...]:
    """Return the program that the rule takes, then the other one if there is one.

    Whether there are producer blocks concerns a whole emitted file, hence all variants of a kernel;
    all else is a matter of a variant's knobs. Raises PlanError for a muGraph without a plan.
    """
    plain = tile_program(recipe, graph, arch)
    made = with_producer_blocks(plain, target(arch))
    return (made, plain) if made.producer_blocks else (plain,)


def member(programs: tuple[TileProgram, ...], *, producers: bool) -> TileProgram:
    """Return the program with producer blocks or without; the rule's if it is alone."""
    found = (p for p in programs if (p.producer_blocks > 0) is producers)
    return next(found, programs[0])


def variants(program: TileProgram, on: Target) -> tuple[Variant, ...]:
    """Return one variant per bucket for a planned program on a target; the last takes any number.

    Buckets of more tokens than a block can hold are left away. Raises PlanError for extents that
    its loads cannot take, and for a program that keeps more than a block can hold in any case.
    """
    _require_aligned(program)
    chosen: list[Variant] = []
    for bucket in buckets(program, on):
        try:
            knobs = _choose(program, bucket, on)
        except PlanError:
            if not chosen:
                raise
            break
        if knobs is None:
            break
        chosen.append(Variant(bucket, knobs))
    return (*chosen[:-1], replace(chosen[-1], bucket=ANY_SIZE))


def _choose(program: TileProgram, bucket: int, on: Target) -> Knobs | None:
    fitting = (s for s in SCHEDULES.values() if not s.fits(program, on))
    found = (s.choose(program, bucket, on) for s in fitting)
    return next((knobs for knobs in found if knobs is not None), None)


def _require_aligned(program: TileProgram) -> None:
    roles, extents = program.roles, consumer_program(program).extents
    if extents[roles.depth] % ALIGNED_ELEMENTS:
        raise PlanError(
            f"{program.recipe}: rows of {extents[roles.depth]} elements are not 16-byte aligned",
            f"choose {roles.depth} as a multiple of {ALIGNED_ELEMENTS}",
        )
    for dim in roles.inner:
        if extents[dim] % ALIGNED_ELEMENTS:
            raise PlanError(f"{program.recipe}: {dim} = {extents[dim]} is no multiple of 8")


def buckets(program: TileProgram, on: Target) -> tuple[int, ...]:
    """Return the numbers of tokens that a program has variants for; row-wise ones take any."""
    if not program.loop:
        return (ANY_SIZE,)
    if program.also:
        return BUCKETS_WITH_RESULTS
    again = program.statistics and not has_prologue(program, on)
    return BUCKETS_WITH_STATISTICS if again else BUCKETS
