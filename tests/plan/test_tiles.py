"""What the planners add to a tile program: that layouts exist, barriers, shared bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.header import Header
from mirage_kernels.generator.ir import DType, Graph, retile
from mirage_kernels.generator.plan.layout_planner import Setup, plan_layouts
from mirage_kernels.generator.plan.layouts import Swizzle
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.tiles import WRITTEN
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import variants
from mirage_kernels.generator.schedules.sliced_k import Footprint, SlicedK
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
ON = target("sm_90a")


def graph(fused: Fused) -> Graph:
    shape = Shape("a test", {"K": 4096, "N": 6144})
    return retile(fused(shape=shape), {"M": 8, "N": 48, "K": 512})


def program(fused: Fused) -> TileProgram:
    return tile_program("mine", graph(fused))


def barriers(made: TileProgram) -> list[str]:
    return [s.out for s in (*made.loop, *made.meetings, *made.epilogue) if s.barrier]


def test_the_cheapest_layouts_are_those_that_the_writers_know(fused: Fused) -> None:
    everything = replace(WRITTEN, swizzles=tuple(Swizzle), any_m_side=True)
    cheapest, written = (
        plan_layouts(graph(fused), Setup(ON, offered=offered))[0].solution.cycles
        for offered in (everything, WRITTEN)
    )
    assert cheapest == written


def test_barriers_stand_before_sums_of_warps_and_before_the_epilogue(fused: Fused) -> None:
    made = program(fused)
    assert barriers(made) == [made.meetings[0].out, made.epilogue[0].out]
    header = Header("a test", "K4096_N6144_fp16", [("Plan", "a test")])
    source = emit_cuda(Kernel(made, variants(made, ON), DType.FP16, header))
    assert len(re.findall(r"__syncthreads\(\);", source)) == len(barriers(made))


def test_stages_and_sums_of_warps_share_bytes(fused: Fused) -> None:
    knobs = SlicedK(tokens=64, rows=48, warps=4, chunks=2, stages=3)
    made = Footprint.of(program(fused)).arrangement(knobs)
    stages, product = (4 * 3 * 30 * 512, 4 * 64 * 52 * 4)
    assert made.offsets == {"steps": 0, "scaled_product": 0, "x_squared": product}
    assert made.peak == stages
