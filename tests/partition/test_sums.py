"""Several sums over rows of one tensor are results of one kernel, which reads it once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cutting import cut, drawn, made, really_made, require_same, ways
from torch import Tensor

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.pipeline import Result
from mirage_kernels.generator.recipe import Recipe

Results = tuple[Tensor, ...]


def moments(x: Tensor) -> Results:
    return x.sum(-1), (x * x).sum(-1)


def mean_and_variance(x: Tensor) -> Results:
    return torch.var_mean(x, dim=-1)


def extremes(x: Tensor) -> Results:
    return x.amin(-1), x.amax(-1)


def bounds(x: Tensor) -> Results:
    low, high = torch.aminmax(x, dim=1)
    return low, high


def deviation(x: Tensor) -> Results:
    return x.mean(dim=-1), x.std(dim=-1, correction=0)


@pytest.mark.parametrize(
    "run", [moments, mean_and_variance, extremes, bounds, deviation], ids=lambda run: run.__name__
)
def test_sums_of_one_tensor_are_one_proved_kernel(run: Callable[[Tensor], Results]) -> None:
    program = cut(run, ["x"], really_made, x=(8, 512))
    assert not program.reasons
    assert len(ways(program)[0]) == 1
    (result,) = program.results
    assert len(result.record.graph.outputs) == 2
    assert result.record.proof.log2_failure <= -40
    require_same(program, run, x=drawn(5, 512))


def test_sums_for_which_no_one_kernel_is_found_are_apart() -> None:
    def make(recipe: Recipe) -> Result:
        if recipe.also:
            raise SearchError("the search found nothing", "")
        return made(recipe)

    program = cut(moments, ["x"], make, x=(8, 512))
    assert sorted(ways(program)[0]) == ["mul, sum", "sum"]
    require_same(program, moments, x=drawn(5, 512))


def test_sums_of_other_lengths_are_apart() -> None:
    def across(x: Tensor) -> Results:
        return x.sum(-1), x.sum(0)

    program = cut(across, [], x=(8, 512))
    assert ways(program)[0] == ["sum", "sum"]


def test_where_a_kernel_has_no_form_of_several_results_they_are_several_kernels() -> None:
    def quantised(x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        return torch.sort(x / scale)[0] * scale

    program = cut(quantised, ["x"], really_made, x=(8, 72))
    assert sorted(ways(program)[0]) == ["[sort]", "abs, amax, clamp, div", "div", "mul"]
    require_same(program, quantised, x=drawn(5, 72))


def test_norms_whose_extents_are_large_constants_are_proved() -> None:
    def grouped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.group_norm(x, 8, w, b)

    program = cut(grouped, [], really_made, x=(2, 64, 256), w=(64,), b=(64,))
    assert ways(program) == [["group_norm"]]


def test_a_sum_beside_its_summands_in_fp32_has_a_time() -> None:
    def run(x: Tensor, r: Tensor) -> Results:
        r = r.float() + x
        return r, torch.rsqrt(r.pow(2).mean(-1, keepdim=True) + 1e-6)

    program = cut(run, ["x", "r"], really_made, x=(8, 512), r=(8, 512))
    assert ways(program) == [["add, pow, mean, add, rsqrt"]]
