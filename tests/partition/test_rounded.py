"""Results of 8 bits: kernels round what they store, beside scales and what is rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cutting import Given, cut_given, drawn, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError, RecipeError
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.tiles.check import require_same as require_tiles

FP8, INT8, MOST = torch.float8_e4m3fn, torch.int8, 448.0
Both = tuple[Tensor, Tensor]


def norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)


def of_rows(x: Tensor, w: Tensor) -> Both:
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).clamp(-127, 127).to(INT8), scale


def of_norms(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = x + 1
    y = norm(total, w).float()
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
    return torch.round(y / scale).to(INT8), scale, total


def of_groups(x: Tensor, w: Tensor) -> Both:
    gate, up = x.chunk(2, dim=-1)
    y = (F.silu(gate) * up).float().unflatten(-1, (-1, 8))
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-10) / MOST
    return (y / scale).clamp(-MOST, MOST).to(FP8).flatten(-2), scale.squeeze(-1)


def of_a_given_scale(x: Tensor, w: Tensor) -> Tensor:
    return (norm(x, w) / w[:1]).clamp(-MOST, MOST).to(FP8)


def of_five_bits_of_exponents(x: Tensor, w: Tensor) -> Tensor:
    return (x.float() * 3).to(torch.float8_e5m2)


def beside_itself(x: Tensor, w: Tensor) -> Both:
    y = norm(x, w)
    return y, y.to(FP8)


GIVEN: Given = {"x": drawn(6, 48), "w": drawn(48).abs() + 0.5}
ROUNDED: dict[Callable[..., Any], list[torch.dtype]] = {
    of_rows: [INT8, torch.float32],
    of_norms: [INT8, torch.float32, torch.bfloat16],
    of_groups: [FP8, torch.float32],
    of_a_given_scale: [FP8],
    of_five_bits_of_exponents: [torch.float8_e5m2],
    beside_itself: [torch.bfloat16, FP8],
}
each = pytest.mark.parametrize("run", ROUNDED, ids=lambda run: run.__name__)


@each
def test_one_kernel_rounds_and_stores_what_it_is_rounded_with(run: Callable[..., Any]) -> None:
    program = cut_given(run, GIVEN, ("x",))
    assert [len(way) for way in ways(program)] == [1]
    assert "[" not in ways(program)[0][0]
    require_same(program, run, **GIVEN)


@each
def test_such_a_kernel_is_found_and_proved(run: Callable[..., Any]) -> None:
    program = cut_given(run, GIVEN, ("x",), really_made)
    (result,) = program.results
    record = result.record
    assert record.proof.log2_failure <= -40
    assert all(v.schedule == "general" for v in record.variants)
    types = [record.graph.values[name].type.dtype for name in record.graph.outputs]
    named = {"int8": DType.INT8, "float8_e4m3fn": DType.FP8_E4M3, "float8_e5m2": DType.FP8_E5M2}
    known = {"float32": DType.FP32, "bfloat16": DType.BF16, **named}
    assert {*types} == {known[str(t).removeprefix("torch.")] for t in ROUNDED[run]}
    require_tiles(record.graph, 64, 2)
    with pytest.raises(PlanError, match="only general kernels store"):
        tile_program("f", record.graph)


def test_what_is_rounded_is_no_number_of_the_same_kernel() -> None:
    def rounded_and_back(x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return torch.round(x / scale).to(INT8).to(x.dtype) * scale

    given = {"x": GIVEN["x"]}
    program = cut_given(rounded_and_back, given, ("x",))
    assert ways(program)[0] == ["abs, amax, div, div, round, to", "mul"]
    require_same(program, rounded_and_back, **given)


def test_products_round_no_results() -> None:
    def quantized(x: Tensor, w: Tensor) -> Tensor:
        return (F.linear(x, w) * 0.5).clamp(-MOST, MOST).to(FP8)

    program = cut_given(quantized, {"x": drawn(6, 64), "w": drawn(32, 64)}, ("x",))
    assert ways(program)[0][0].startswith("linear")
    assert "to" not in ways(program)[0][0].split(", ")


def test_pytorch_rounds_to_uint8_and_what_is_only_cast() -> None:
    def cast_only(x: Tensor) -> Both:
        return x.to(FP8), torch.round(x.abs()).to(torch.uint8)

    program = cut_given(cast_only, {"x": GIVEN["x"]}, ("x",))
    assert ways(program)[0] == ["[to]", "abs, round", "[to]"]


def test_a_recipe_stores_results_in_types_that_kernels_have() -> None:
    with pytest.raises(RecipeError, match="output of recipe stored cannot be stored as uint8"):

        @Recipe(
            inputs={"x": "M K"},
            output="M K",
            dynamic={"M": 8},
            reference=lambda x: x,
            stores={"output": DType.UINT8},
        )
        def stored(x: Tensor) -> Tensor:
            return x * 1
