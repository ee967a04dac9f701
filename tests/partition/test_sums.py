"""Several sums over rows of one tensor are results of one kernel, which reads it once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cutting import cut, drawn, made, really_made, require_same, ways
from torch import Tensor
from torch.nn import functional

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.ir import DType
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


def test_a_scale_is_stored_beside_what_it_scales() -> None:
    def quantised(x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        return torch.sort(x / scale)[0] * scale

    program = cut(quantised, ["x"], really_made, x=(8, 72))
    assert sorted(ways(program)[0]) == ["[sort]", "abs, amax, clamp, div, div", "mul"]
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


def divergence(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.softmax(x, dim=1), torch.softmax(y, dim=1)
    return functional.kl_div(torch.log(x), y, reduction="batchmean")


def mean_of_normed(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[1:]).abs().mean()


def columns_of_softmax(x: Tensor) -> Tensor:
    return x.softmax(-1).square().sum((0, 1), keepdim=True)


@pytest.mark.parametrize(
    ("run", "first"),
    [
        (divergence, "softmax, log_softmax, kl_div, sum"),
        (mean_of_normed, "layer_norm, abs, mean"),
        (columns_of_softmax, "softmax, square, sum"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_rows_own_sums_went_into_is_summed_along_rows_first(
    run: Callable[..., Tensor], first: str
) -> None:
    names = run.__code__.co_varnames[: run.__code__.co_argcount]
    program = cut(run, names, really_made, **dict.fromkeys(names, (8, 512)))
    (steps,) = ways(program)
    assert ", ".join(steps).startswith(first)
    assert sum(len(r.record.graph.blocks) for r in program.results) == 2
    stored = [r.record.graph.values[r.record.graph.outputs[0]].type for r in program.results]
    assert {t.dtype for t in stored[:-1]} <= {DType.FP32}
    assert stored[-1].dtype is DType.BF16
    require_same(program, run, **{name: drawn(5, 512) for name in names})


@pytest.mark.parametrize(
    ("run", "sums"),
    [
        (lambda x: x.square().sum(), 1),
        (lambda x: x.softmax(-1).sum(-1), 1),
        (lambda x: x.softmax(0).sum((0, 1)), 2),
        (lambda x: (x / x.sum()).sum(), 2),
    ],
    ids=["of_inputs", "of_rows", "of_columns", "of_all"],
)
def test_other_sums_stay_one(run: Callable[[Tensor], Tensor], sums: int) -> None:
    program = cut(run, [], x=(8, 512))
    assert ", ".join(ways(program)[0]).split(", ").count("sum") == sums


def test_many_functions_and_sums_of_unlike_rows_are_two_kernels() -> None:
    def run(h: Tensor, skip: Tensor, x: Tensor, z: Tensor, n: Tensor, w: Tensor) -> Tensor:
        y = (h.sum(-1) + skip[:, None] * x).reshape(2, 128) * functional.silu(z)
        wide = y.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return functional.linear((normed * (1 + n)).bfloat16(), w)

    given = {"h": drawn(2, 4, 32, 16), "skip": drawn(4), "x": drawn(2, 4, 32)}
    given |= {"z": drawn(2, 128), "n": drawn(128), "w": drawn(64, 128) / 8}
    program = cut(run, [], **{name: (*x.shape,) for name, x in given.items()})
    assert ways(program)[0] == [
        "sum, mul, add, silu, mul, pow",
        "mean, add, rsqrt, mul, add, mul, to, linear",
    ]
    require_same(program, run, **given)
