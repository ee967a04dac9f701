"""The cost reading ranks by what a kernel moves, computes, and fits into."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from mirage_kernels.generator.ir import DType, Graph, from_json, parts_of, retile
from mirage_kernels.generator.meaning.cost import Estimate, estimate
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import Recipe, Shape, output_type, trace
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.sketch import (
    BlockSketch,
    LibrarySketch,
    ProgramSketch,
    Setting,
    Step,
    View,
    middle_name,
)
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
ON = target("sm_90a")
SHAPE = Shape("a model", {"K": 4096, "N": 6144})
SIZES = {"M": 8, "K": 4096, "N": 6144}
TILES = {"M": 8, "K": 512, "N": 48}


def cost(graph: Graph, sizes: dict[str, int] | None = None) -> Estimate:
    return estimate(graph, sizes or SIZES, ON)


@pytest.fixture(scope="module")
def kernel(fused: Fused) -> Graph:
    return retile(fused(shape=SHAPE), TILES)


def two_kernels(recipe: Recipe) -> Graph:
    """Scale the weight in one kernel, multiply in another: no norm, for the cost alone."""
    views = (View("norm_weight", (None,), None), View("weight", ("N",), None))
    scaling = BlockSketch(Setting(("N",), None), views, (Step("mul", (0, 1)),), ((2, ("N", "K")),))
    product = LibrarySketch((middle_name(0), "x"), "K", ("N", "M"))
    spec = trace(recipe, SHAPE, DType.FP16)
    goal = Goal(spec, output_type(recipe, SHAPE, DType.FP16), DType.FP16, {"N": 16})
    return lower(ProgramSketch((scaling, product)), goal)


def test_a_kernel_takes_no_less_than_reading_its_bytes_once(kernel: Graph) -> None:
    assert cost(kernel).microseconds > 4096 * 6144 * 2 / ON.memory_bytes_per_us


def test_an_uneven_last_wave_costs_more(kernel: Graph) -> None:
    narrow = retile(kernel, {"N": 46})  # 134 blocks on 132 multiprocessors
    assert cost(narrow).microseconds > 1.5 * cost(kernel).microseconds


def test_tiles_that_do_not_fit_shared_memory_cost_infinitely_much(kernel: Graph) -> None:
    assert cost(retile(kernel, {"K": 4096})) == Estimate(inf, "shared memory")


def test_thread_graphs_cost_what_their_ops_cost(kernel: Graph) -> None:
    assert cost(with_threads(kernel)).microseconds == pytest.approx(cost(kernel).microseconds)


def test_every_kernel_of_a_program_is_launched(rms_norm_linear: Recipe) -> None:
    free = replace(ON, launch_us=0.0)
    graph = two_kernels(rms_norm_linear)
    launches = cost(graph).microseconds - estimate(graph, SIZES, free).microseconds
    assert launches == pytest.approx(2 * ON.launch_us)


SUM = Step("sum", (0,), "K")


def row_sums(recipe: Recipe, *kernels: BlockSketch, tiles: dict[str, int]) -> Graph:
    spec = trace(recipe, SHAPE, DType.FP16)
    result = replace(spec.values["x"].type, dims=spec.values["x"].type.dims[:1])
    return lower(ProgramSketch(kernels), Goal(spec, result, DType.FP16, {"M": 8} | tiles))


def test_blocks_that_share_a_sum_fill_the_multiprocessors(rms_norm_linear: Recipe) -> None:
    whole = BlockSketch(Setting(("M",), None), (View("x", ("M",), None),), (SUM,), ((1, ("M",)),))
    steps = (SUM, Step("combine", (1,), "K"))
    shared = BlockSketch(
        Setting(("M", "K"), None, "K"), (View("x", ("M", "K"), None),), steps, ((2, ("M",)),)
    )
    one = row_sums(rms_norm_linear, whole, tiles={})
    many = row_sums(rms_norm_linear, shared, tiles={parts_of("K"): 64})
    assert cost(many).microseconds < cost(one).microseconds


def test_partial_sums_between_kernels_are_written_and_read(rms_norm_linear: Recipe) -> None:
    stored = ((1, (parts_of("K"), "M")),)
    views = (View("x", ("M", "K"), None),)
    first = BlockSketch(Setting(("M", "K"), None, "K"), views, (SUM,), stored)
    read, total = View(middle_name(0), ("M",), None), Step("sum", (0,), parts_of("K"))
    last = BlockSketch(Setting(("M",), None), (read,), (total,), ((1, ("M",)),))
    few, many = (
        cost(row_sums(rms_norm_linear, first, last, tiles={parts_of("K"): tile}))
        for tile in (32, 4)  # 128 blocks, or 1,024
    )
    assert many.microseconds > few.microseconds


FLASH = Path(__file__).parents[1] / "golden" / "mugraphs" / "gqa-flash_by_hand.json"


def test_a_rescaled_sum_is_carried_in_every_step_like_any_other() -> None:
    flash = from_json(json.loads(FLASH.read_text())["mugraph"])
    (block,) = flash.blocks
    assert block.body is not None
    plain = tuple(
        replace(n, op="accum", args=n.args[:1]) if n.op == "accum_rescaled" else n
        for n in block.body.nodes
    )
    body = replace(block.body, nodes=plain)
    other = replace(flash, nodes=(*flash.nodes[:-1], replace(block, body=body)))
    sizes = {"B": 8, "Hkv": 4, "G": 8, "D": 64, "L": 4096}
    assert cost(flash, sizes) == cost(other, sizes)
