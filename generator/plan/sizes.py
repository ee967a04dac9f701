"""The shared memory of each kind of block that a weight-streaming kernel launches, in bytes."""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.plan.adapters import (
    MAKER_TOKENS,
    TASKS_BYTES,
    makers_for,
    slices_ahead,
)
from mirage_kernels.generator.plan.apart import PAIR, WHERE_MEASURED, makers_of
from mirage_kernels.generator.plan.areas import Meeting, kept_bytes
from mirage_kernels.generator.plan.front import behind
from mirage_kernels.generator.plan.held import STAMP_BYTES, HeldBlock
from mirage_kernels.generator.plan.program import Layout, TileProgram
from mirage_kernels.generator.plan.split import ALONE_BYTES, BARRIER_BYTES
from mirage_kernels.generator.plan.variants import Footprint, Knobs
from mirage_kernels.generator.target import target


def users_bytes(program: TileProgram, knobs: Knobs) -> int:
    """Return what a block with rows takes."""
    own = behind(program) if knobs.front else program
    shared = Footprint.of(own).shared_bytes(knobs)
    if not program.stacked:
        return shared
    (fetched,) = program.fetches
    inner = program.roles.inner_of(fetched.type)
    assert inner is not None
    more = slices_ahead(program, knobs, target(WHERE_MEASURED[0])) - 1
    slices = TASKS_BYTES + more * kept_bytes(knobs.rows // knobs.blocks, inner.size)
    return max(ALONE_BYTES, shared + slices)


def makers_bytes(program: TileProgram, knobs: Knobs) -> int:
    """Return what a block takes that computes totals for all others of its launch."""
    made = makers_of(program)
    if not knobs.maker_groups:
        return Footprint.of(made).shared_bytes(knobs.makers) + STAMP_BYTES
    block = HeldBlock.of(made).sized(PAIR * knobs.maker_rows, knobs.maker_tokens, PAIR)
    block = replace(block, groups=knobs.maker_groups)
    return block.shared_bytes(knobs.maker_stages) + STAMP_BYTES


def stacked_makers_bytes(program: TileProgram) -> int:
    """Return what a block of a launch of makers takes: tasks, sums of its warps and of blocks."""
    makers = makers_for(program)
    sums = Meeting("sums", Layout.ACCUM, barrier=False)
    own = Knobs(MAKER_TOKENS, makers.rows, makers.warps, 1, 1)
    met = sums.bytes(own) + sums.bytes(replace(own, warps=makers.blocks))
    return TASKS_BYTES + met + BARRIER_BYTES
