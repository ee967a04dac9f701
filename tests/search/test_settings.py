"""Settings: where block graphs may run, how inputs may be cut; and lowering what is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import json

from mirage_kernels.generator.ir import DType, Graph, TensorType, parts_of
from mirage_kernels.generator.recipe import Recipe, Shape, load_recipe, output_type, trace
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.problem import Problem
from mirage_kernels.generator.search.sketch import (
    GRID_AXES,
    BlockSketch,
    Counts,
    DimRoles,
    Found,
    LibrarySketch,
    Limits,
    ProgramSketch,
    Setting,
    Step,
    TensorInfo,
    View,
    middle_name,
    settings,
)
from mirage_kernels.generator.target import target

X, W = TensorInfo("x", ("M", "K"), 0), TensorInfo("w", ("N", "K"), 1)
PARTS = TensorInfo("p", (parts_of("K"), "M", "N"), 2)
LONG = frozenset({"M", "N", "K"})
ROLES = DimRoles(("K",), ("M", "N"), LONG)
PLAIN, LOOPED = Setting(("N", "M"), None), Setting(("N", "M"), "K")
SPLIT, SPLIT_LOOPED = Setting(("N", "M", "K"), None, "K"), Setting(("N", "M", "K"), "K", "K")


def test_a_reduced_dim_is_looped_over_and_split_or_not() -> None:
    assert list(settings((X, W), ROLES)) == [PLAIN, LOOPED, SPLIT, SPLIT_LOOPED]


def test_a_short_dim_is_neither_looped_over_nor_split() -> None:
    assert list(settings((X, W), replace(ROLES, long=LONG - {"K"}))) == [PLAIN]


def test_a_reduced_dim_that_comes_out_may_be_cut_or_left_whole() -> None:
    roles = DimRoles(("K",), ("M", "K"), LONG)
    grids = {s.grid for s in settings((X,), roles) if s.split is None}
    assert grids == {("M",), ("M", "K")}


def test_a_grid_has_no_more_axes_than_there_are_names() -> None:
    wide = TensorInfo("x", tuple("ABCDEFG"), 0)
    roles = DimRoles((), wide.dims, LONG)
    assert max(len(s.grid) for s in settings((wide,), roles)) == len(GRID_AXES)


def test_a_first_kernel_may_lack_dims_of_the_result() -> None:
    grids = {s.grid for s in settings((X, W), ROLES, first=True)}
    assert grids == {("N",), ("M",), ("N", "M")}


ENDLESS = replace(ROLES, endless=frozenset({"K"}))
X_M, X_K = View("x", (None, "M"), None), View("x", (None, "M"), "K")
# How a tensor may be cut: what is never reduced is cut everywhere, a split dim wherever it occurs,
# what is reduced by the loop or not at all, unless no block can hold it.
VIEWS = [
    (PLAIN, X, ROLES, [X_M]),
    (PLAIN, W, ROLES, [View("w", ("N", None), None)]),
    (LOOPED, X, ROLES, [X_K, X_M]),
    (SPLIT, X, ROLES, [View("x", (None, "M", "K"), None)]),
    (SPLIT, W, ROLES, [View("w", ("N", None, "K"), None)]),
    (PLAIN, PARTS, ROLES, [View("p", ("N", "M"), None)]),
    (LOOPED, X, ENDLESS, [X_K]),
    (PLAIN, X, ENDLESS, []),
    (SPLIT, X, ENDLESS, [View("x", (None, "M", "K"), None)]),
    (Setting(("M",), "K"), W, ROLES, []),  # the kernel's result lacks N
]


@pytest.mark.parametrize(("setting", "tensor", "roles", "views"), VIEWS)
def test_a_tensor_is_cut_in_these_ways(
    setting: Setting, tensor: TensorInfo, roles: DimRoles, views: list[View]
) -> None:
    assert setting.views(tensor, roles) == views


def test_a_dim_is_endless_when_shared_memory_holds_no_line_of_it() -> None:
    attention = load_recipe("gqa")
    spec = trace(attention, attention.shapes[0], DType.FP16)
    assert Problem(spec, Limits(), target("sm_90a")).roles.endless == {"L"}


SHAPE = Shape("a test", {"K": 72, "N": 40})


@pytest.fixture(scope="module")
def goal(rms_norm_linear: Recipe) -> Goal:
    spec = trace(rms_norm_linear, SHAPE, DType.FP16)
    result = output_type(rms_norm_linear, SHAPE, DType.FP16)
    return Goal(spec, result, DType.FP16, {"M": 8, "N": 16, "K": 32})


MIDDLE = middle_name(0)
TIMES_X = LibrarySketch((MIDDLE, "x"), "K", ("N", "M"))


def scaling_then(last: LibrarySketch) -> ProgramSketch:
    views = (View("norm_weight", (None,), None), View("weight", ("N",), None))
    steps, results = (Step("mul", (0, 1)),), ((2, ("N", "K")),)
    return ProgramSketch((BlockSketch(Setting(("N",), None), views, steps, results), last))


def test_a_tensor_between_kernels_is_stored_narrow(goal: Goal) -> None:
    graph = lower(scaling_then(TIMES_X), goal)
    middle: TensorType = graph.blocks[0].out.type
    assert (middle.dtype, set(middle.names)) == (DType.FP16, {"N", "K"})


def split_in_two(loop: str | None) -> ProgramSketch:
    """Blocks sum x along parts of K; a second kernel sums the parts."""
    cut = (View("x", ("M", "K"), loop),)
    steps = (Step("sum", (0,), "K"), Step("accum", (1,)))[: 2 if loop else 1]
    stored = ((len(steps), (parts_of("K"), "M")),)
    first = BlockSketch(Setting(("M", "K"), loop, "K"), cut, steps, stored)
    views = (View(MIDDLE, ("M",), None),)
    total = (Step("sum", (0,), parts_of("K")),)
    return ProgramSketch((first, BlockSketch(Setting(("M",), None), views, total, ((1, ("M",)),))))


def row_sums(goal: Goal, program: ProgramSketch) -> Graph:
    m = goal.spec.values["x"].type.dim("M")
    result = TensorType((m,), DType.FP16)
    tiles = {"M": 8, "K": 8, parts_of("K"): 32}
    return lower(program, Goal(goal.spec, result, DType.FP16, tiles))


@pytest.mark.parametrize("loop", [None, "K"])
def test_partial_sums_are_stored_in_fp32_side_by_side(goal: Goal, loop: str | None) -> None:
    graph = row_sums(goal, split_in_two(loop))
    stored = graph.blocks[0].out.type
    assert stored.dtype is DType.FP32
    assert (stored.dims[0].name, stored.dims[0].size) == (parts_of("K"), 3)  # 72 in parts of 32


def test_the_parts_of_a_split_and_its_loop_have_tiles_of_their_own(goal: Goal) -> None:
    body = row_sums(goal, split_in_two("K")).blocks[0].body
    assert body is not None
    assert body.space is not None
    assert {a.tile_key: a.tile for a in body.space.axes} == {"M": 8, parts_of("K"): 32, "K": 8}


@pytest.mark.parametrize("program", [scaling_then(TIMES_X), split_in_two(None), split_in_two("K")])
def test_a_found_program_is_the_same_after_json(program: ProgramSketch) -> None:
    found = Found((program,), Counts(7, {"type": 3}, 2, 1))
    assert json.decode(json.encode(found), type=Found) == found


def test_one_number_comes_of_one_block_or_of_blocks_that_split_a_sum() -> None:
    roles = DimRoles(("M", "K"), (), LONG, endless=frozenset({"M"}))
    found = list(settings((X,), roles))
    assert {s.grid for s in found} == {(), ("M",), ("K",)}
    assert Setting((), "M") in found
    assert Setting(("K",), "M", "K") in found  # M has no end: a loop goes along it
    assert Setting(("M",), "K", "M") not in found
