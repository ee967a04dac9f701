"""Planners at work on a tile program, and what is emitted with one of them left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.ir import DType, Graph, retile
from mirage_kernels.generator.plan.forms import Swizzle
from mirage_kernels.generator.plan.layouts import Setup, layouts
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.tiles import PLANNED, WRITTEN, Planning
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import variants
from mirage_kernels.generator.schedules.sliced_k.knobs import Footprint, SlicedK
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
ON = target("sm_90a")


def graph(fused: Fused) -> Graph:
    shape = Shape("a test", {"K": 4096, "N": 6144})
    return retile(fused(shape=shape), {"M": 8, "N": 48, "K": 512})


def program(fused: Fused, planning: Planning = PLANNED) -> TileProgram:
    return tile_program("mine", graph(fused), planning)


def source(fused: Fused, planning: Planning = PLANNED) -> str:
    made = program(fused, planning)
    header = Header("a test", "K4096_N6144_fp16", [("Plan", "a test")])
    return emit_cuda(Kernel(made, variants(made, ON), DType.FP16, header))


def barriers(made: TileProgram) -> list[str]:
    return [s.out for s in (*made.loop, *made.meetings, *made.epilogue) if s.barrier]


def test_the_cheapest_layouts_are_those_that_the_writers_know(fused: Fused) -> None:
    everything = replace(WRITTEN, swizzles=tuple(Swizzle), m_side="any")
    cheapest = layouts(graph(fused), Setup(ON, offered=everything))
    assert cheapest.cycles == layouts(graph(fused), Setup(ON, offered=WRITTEN)).cycles


def test_planned_barriers_stand_before_what_meets_and_before_the_epilogue(fused: Fused) -> None:
    made = program(fused)
    assert barriers(made) == [made.meetings[0].out, made.epilogue[0].out]


def test_without_a_schedule_every_statement_has_its_barrier(fused: Fused) -> None:
    made = program(fused, Planning(schedule=False))
    computed = [s.out for s in made.loop if s not in made.loads]
    meetings = [s.out for s in made.meetings]
    assert barriers(made) == [*computed, *meetings, made.epilogue[0].out]


def test_without_a_memory_plan_nothing_waits_for_the_ring(fused: Fused) -> None:
    made = program(fused, Planning(memory=False))
    assert barriers(made) == [made.epilogue[0].out]


def test_planners_change_no_statement(fused: Fused) -> None:
    def bare(made: TileProgram) -> list[object]:
        statements = (*made.loop, *made.meetings, *made.epilogue)
        return [replace(s, barrier=False) for s in statements]

    others = [Planning(schedule=False), Planning(memory=False)]
    assert all(bare(program(fused, p)) == bare(program(fused)) for p in others)


def test_the_ring_and_what_meets_share_bytes(fused: Fused) -> None:
    knobs = SlicedK(tokens=64, rows=48, warps=4, chunks=2, stages=3)
    made = Footprint.of(program(fused)).arrangement(knobs)
    ring, product, squares = (4 * 3 * 30 * 512, 4 * 64 * 52 * 4, 4 * 64 * 4)
    assert made.offsets == {"steps": 0, "scaled_product": 0, "x_squared": product}
    assert made.peak == ring
    alone = Footprint.of(program(fused, Planning(memory=False))).arrangement(knobs)
    assert alone.peak == ring + product + squares


def test_without_a_memory_plan_fewer_stages_fit(fused: Fused) -> None:
    planned, off = (variants(program(fused, p), ON) for p in (Planning(), Planning(memory=False)))
    stages = {v.knobs.tokens: v.knobs.stages for v in planned}
    assert (stages[16], stages[64]) == (3, 6)  # 64: two blocks that split the depth
    stages = {v.knobs.tokens: v.knobs.stages for v in off}
    assert (stages[16], stages[64]) == (2, 2)
    limit = Footprint.of(program(fused, Planning(memory=False)))
    assert all(limit.shared_bytes(v.knobs) <= ON.shared_bytes for v in off)


EMITTED = {
    "no memory plan": (Planning(memory=False), "kScaledProductAt = Steps::kBytes;"),
    "no schedule": (Planning(schedule=False), "static_assert(K % (kWarps * kDepth) == 0,"),
}


@pytest.mark.parametrize("what", EMITTED)
def test_what_is_not_planned_shows_in_the_source(fused: Fused, what: str) -> None:
    planning, line = EMITTED[what]
    assert line in source(fused, planning)
    assert line not in source(fused)


def test_the_source_has_the_barriers_of_the_program(fused: Fused) -> None:
    for planning in (Planning(), Planning(schedule=False), Planning(memory=False)):
        made = program(fused, planning)
        emitted = len(re.findall(r"__syncthreads\(\);", source(fused, planning)))
        assert emitted == len(barriers(made))
