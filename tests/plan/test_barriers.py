"""Barriers: the fewest, compared with every order and placement of them, and where they stand."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import permutations, product

import pytest

from mirage_kernels.generator.emit.cuda import Kernel, emit_cuda
from mirage_kernels.generator.emit.part import Header
from mirage_kernels.generator.ir import DType, Graph, retile
from mirage_kernels.generator.plan.barriers import Edge, depths
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import variants
from mirage_kernels.generator.target import target


def fewest(tasks: str, edges: list[Edge]) -> int:
    """Return the least barriers between tasks in any order, by trying every placement."""
    found = len(tasks)
    for order in permutations(tasks):
        for gaps in product((0, 1), repeat=len(tasks) - 1):
            at = {t: sum(gaps[:i]) for i, t in enumerate(order)}
            if all(at[first] < at[then] for first, then in edges):
                found = min(found, sum(gaps))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_no_order_and_placement_that_holds_has_fewer_barriers(seed: int) -> None:
    rng = random.Random(seed)
    tasks = "abcdef"[: rng.randint(2, 6)]
    pairs = ((a, b) for i, a in enumerate(tasks) for b in tasks[i + 1 :])
    edges = [pair for pair in pairs if rng.random() < 0.4]
    made = depths(tasks, edges)
    assert all(made[first] < made[then] for first, then in edges)
    assert max(made.values()) == fewest(tasks, edges)


def test_tasks_of_one_depth_share_a_barrier() -> None:
    assert depths("abcd", [("a", "c"), ("b", "d")]) == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_barriers_stand_before_sums_of_warps_and_before_the_epilogue(
    fused: Callable[..., Graph],
) -> None:
    shape = Shape("a test", {"K": 4096, "N": 6144})
    made = tile_program("mine", retile(fused(shape=shape), {"M": 8, "N": 48, "K": 512}))
    found = [s.out for s in (*made.loop, *made.meetings, *made.epilogue) if s.barrier]
    assert found == [made.meetings[0].out, made.epilogue[0].out]
    header = Header("a test", "K4096_N6144_fp16", [("Plan", "a test")])
    knobs = variants(made, target("sm_90a"))
    source = emit_cuda(Kernel(made, knobs, DType.FP16, header))
    assert len(re.findall(r"__syncthreads\(\);", source)) == len(found)
