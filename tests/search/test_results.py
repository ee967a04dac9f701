"""Several results of one kernel: those that the output does not need are computed beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from mirage_kernels.generator.errors import SearchError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.request import Request

Results = tuple[Tensor, Tensor]


def made(function: Callable[..., Results], shapes: Mapping[str, tuple[int, ...]]) -> Result:
    given = {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    recipe = from_torch(function, given, dynamic={n: {0: "M"} for n in shapes})
    request = Request(recipe, recipe.shapes[0], DType.BF16, "sm_90a")
    return generate(request, jobs=1, progress=lambda event: None)


def turned(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Results:
    return a * cos - b * sin, b * cos + a * sin


def moments(x: Tensor) -> Results:
    mean = x.mean(-1)
    return (x - mean.unsqueeze(-1)).square().mean(-1), mean


def extremes(x: Tensor) -> Results:
    return x.amin(-1), x.amax(-1)


def powers(x: Tensor) -> Results:
    return x.sum(-1), (x * x).sum(-1)


CASES: dict[str, tuple[Callable[..., Results], dict[str, tuple[int, ...]]]] = {
    "a rotation": (
        turned,
        {"a": (3, 4, 64), "b": (3, 4, 64), "cos": (3, 1, 64), "sin": (3, 1, 64)},
    ),
    "mean and variance": (moments, {"x": (3, 512)}),
    "min and max": (extremes, {"x": (3, 512)}),
    "sums of rows that a loop reads": (powers, {"x": (3, 4096)}),
}


@pytest.mark.parametrize("name", CASES)
def test_results_that_do_not_need_each_other_are_of_one_proved_kernel(name: str) -> None:
    record = made(*CASES[name]).record
    assert not record.no_plan
    (kernel,) = record.graph.blocks
    assert [v.name for v in kernel.outs] == [*record.graph.outputs]
    assert len(record.graph.outputs) == 2
    assert record.proof.log2_failure <= -40


def scaled(x: Tensor, w: Tensor) -> Results:
    return x @ w.T, x.sum(-1)


def test_a_result_that_several_blocks_would_store_is_refused() -> None:
    with pytest.raises(SearchError, match="no muGraph equal to scaled"):
        made(scaled, {"x": (3, 512), "w": (3, 512)})


def normed(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> Results:
    size = ((a * a + b * b).mean(-1, keepdim=True) + 1.0).sqrt()
    return turned(a / size, b / size, cos, sin)


def test_results_share_what_they_have_in_common() -> None:
    """Cheaper ways to make one of them by itself would make the norm twice."""
    (kernel,) = made(normed, CASES["a rotation"][1]).record.graph.blocks
    assert kernel.body is not None
    plain = without_threads(kernel.body)
    assert [len(plain.of(op)) for op in ("sqrt", "sum", "contract", "div")] == [1, 1, 0, 3]
