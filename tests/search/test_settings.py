"""Settings: where a block graph may run, and how its inputs may be cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_kernels.generator.ir import DType, Graph, TensorType, check
from mirage_kernels.generator.recipe import Recipe, Shape, output_type, trace
from mirage_kernels.generator.search.blocks import BlockSketch, Step
from mirage_kernels.generator.search.kernels import MIDDLE, LibrarySketch, ProgramSketch
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.settings import (
    GRID_AXES,
    DimRoles,
    Setting,
    TensorInfo,
    View,
    settings,
)

X, W = TensorInfo("x", ("M", "K"), 0), TensorInfo("w", ("N", "K"), 1)
ROLES = DimRoles(reduced=("K",), output=("M", "N"))
LINEAR = list(settings((X, W), ROLES, frozenset({"x", "w"})))


def test_no_setting_comes_twice() -> None:
    assert len(set(LINEAR)) == len(LINEAR)


def test_a_dim_that_is_never_reduced_is_always_cut() -> None:
    assert {s.grid for s in LINEAR} == {("N", "M")}


def test_a_reduced_dim_is_looped_over_or_not() -> None:
    assert {s.loop for s in LINEAR} == {None, "K"}


def test_a_dim_that_is_never_reduced_is_cut_in_every_input_that_has_it() -> None:
    assert {v.cuts for s in LINEAR for v in s.views} == {(None, "M"), ("N", None)}


def test_a_loop_cuts_at_least_one_input() -> None:
    assert all(any(v.loop_cut for v in s.views) for s in LINEAR if s.loop)


def test_an_input_is_cut_by_the_loop_or_replicated() -> None:
    loops = {tuple(v.loop_cut for v in s.views) for s in LINEAR if s.loop}
    assert loops == {("K", "K"), ("K", None), (None, "K")}


def test_inputs_that_must_be_used_are() -> None:
    assert all({v.tensor for v in s.views} == {"x", "w"} for s in LINEAR)


def test_inputs_that_need_not_be_used_may_be_left_out() -> None:
    used = {tuple(v.tensor for v in s.views) for s in settings((X, W), ROLES, frozenset())}
    assert used == {("x", "w"), ("x",), ("w",)}


def test_a_dim_is_never_cut_by_grid_and_loop() -> None:
    roles = DimRoles(reduced=("K",), output=("M", "K"))
    assert all(s.loop not in s.grid for s in settings((X,), roles, frozenset()))


def test_a_reduced_dim_that_comes_out_may_be_left_whole() -> None:
    roles = DimRoles(reduced=("K",), output=("M", "K"))
    assert {s.grid for s in settings((X,), roles, frozenset())} == {("M",), ("M", "K")}


def test_a_grid_has_at_most_three_axes() -> None:
    wide = TensorInfo("x", ("A", "B", "C", "D"), 0)
    roles = DimRoles(reduced=(), output=wide.dims)
    assert max(len(s.grid) for s in settings((wide,), roles, frozenset())) == len(GRID_AXES)


SHAPE = Shape("a test", {"K": 72, "N": 40})


@pytest.fixture(scope="module")
def goal(rms_norm_linear: Recipe) -> Goal:
    spec = trace(rms_norm_linear, SHAPE, DType.FP16)
    result = output_type(rms_norm_linear, SHAPE, DType.FP16)
    return Goal(spec, result, DType.FP16, {"M": 8, "N": 16, "K": 32})


def scaling_then(last: LibrarySketch) -> ProgramSketch:
    views = (View("norm_weight", (None,), None), View("weight", ("N",), None))
    scaling = BlockSketch(Setting(("N",), None, views), (), (Step("mul", (0, 1)),), ("N", "K"))
    return ProgramSketch((scaling, last))


def test_a_lowered_program_is_well_formed(fused: Callable[..., Graph]) -> None:
    assert check(fused())


def test_the_last_kernel_makes_the_recipes_result(goal: Goal) -> None:
    graph = lower(scaling_then(LibrarySketch((MIDDLE, "x"), "K", ("N", "M"))), goal)
    assert graph.values[graph.outputs[0]].type == goal.result


def test_a_tensor_between_kernels_is_stored_narrow(goal: Goal) -> None:
    graph = lower(scaling_then(LibrarySketch((MIDDLE, "x"), "K", ("N", "M"))), goal)
    middle: TensorType = graph.blocks[0].out.type
    assert (middle.dtype, set(middle.names)) == (DType.FP16, {"N", "K"})


def test_a_lowered_kernel_has_the_goals_tiles(fused: Callable[..., Graph]) -> None:
    body = fused().blocks[0].body
    assert body is not None
    assert body.space is not None
    assert {a.dim: a.tile for a in body.space.axes} == {"M": 8, "N": 16, "K": 32}


def test_only_constants_that_are_used_are_lowered(goal: Goal) -> None:
    graph = lower(scaling_then(LibrarySketch((MIDDLE, "x"), "K", ("N", "M"))), goal)
    body = graph.blocks[0].body
    assert body is not None
    assert body.of("size") == ()
