"""Barriers: where they stand."""

from __future__ import annotations

import re
from collections.abc import Callable

from mirage_kernels.generator.emit.cuda import Header, emit_cuda
from mirage_kernels.generator.ir import DType, Graph, retile
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import variants
from mirage_kernels.generator.schedules.streaming import Kernel
from mirage_kernels.generator.target import target


def test_barriers_stand_before_sums_of_warps_and_before_the_epilogue(
    fused: Callable[..., Graph],
) -> None:
    shape = Shape("a test", {"K": 4096, "N": 6144})
    made = tile_program("mine", retile(fused(shape=shape), {"M": 8, "N": 48, "K": 512}))
    found = [s.out for s in (*made.loop, *made.reductions, *made.epilogue) if s.barrier]
    assert found == [made.reductions[0].out, made.epilogue[0].out]
    header = Header("a test", "K4096_N6144_fp16", [("Plan", "a test")])
    knobs = variants(made, target("sm_90a"))
    source = emit_cuda(Kernel(made, knobs, DType.FP16, header))
    assert len(re.findall(r"__syncthreads\(\);", source)) == len(found)


def test_stages_and_products_wait_once_each(adapted: Callable[..., Graph]) -> None:
    made = tile_program("mine", adapted())
    groups = (made.reductions, made.stages[0].statements, made.products, made.epilogue)
    assert [[s.barrier for s in group].count(True) for group in groups] == [1] * 4
    assert all(group[0].barrier for group in groups)
