"""Exponentials of exponentials: proved where only the outer one's law is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.recipe import Recipe, trace
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.search.cases import small_cases
from mirage_kernels.generator.search.verify import LOG2_WANTED, Prover


def gumbel(x: Tensor) -> Tensor:
    return torch.exp(-torch.exp(-x))


def decayed(x: Tensor, y: Tensor, a: Tensor) -> Tensor:
    return (x * torch.exp(-F.softplus(y) * torch.exp(a))).sum(-1)


def tempered(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x * y.exp(), -1)


def spelt_out(x: Tensor) -> Tensor:
    return torch.softmax(x / (1 + torch.exp(-x)), -1)


FUNCTIONS: list[Callable[..., Tensor]] = [gumbel, decayed, tempered, spelt_out]


def of(run: Callable[..., Tensor]) -> tuple[Recipe, Graph]:
    names = run.__code__.co_varnames[: run.__code__.co_argcount]
    x = torch.empty(8, 64, device="meta", dtype=torch.bfloat16)
    recipe = from_torch(run, {n: x[0] if n == "a" else x for n in names})
    return recipe, trace(recipe, recipe.shapes[0], DType.BF16)


@pytest.mark.parametrize("run", FUNCTIONS)
def test_they_compute_what_pytorch_computes(run: Callable[..., Tensor]) -> None:
    recipe, spec = of(run)
    require_reference(recipe, spec, DType.BF16)
    assert len(spec.of("inner_exp")) == 1
    assert len(spec.of("exp")) == 1


@pytest.mark.parametrize("run", FUNCTIONS)
def test_they_are_one_proved_kernel(run: Callable[..., Tensor]) -> None:
    recipe, spec = of(run)
    made = generate(
        Request(recipe, recipe.shapes[0], DType.BF16, "sm_90a"), jobs=1, progress=lambda event: None
    )
    assert len(made.record.graph.blocks) == 1
    prover, cases = Prover(spec), small_cases(spec)
    assert prover.prove(made.record.graph, cases, seed=1).log2_failure <= LOG2_WANTED


@pytest.mark.parametrize("op", ["exp", "sigmoid", "softplus"])
def test_another_function_in_the_place_of_the_inner_one_is_refused(op: str) -> None:
    _, spec = of(decayed)
    (inner,) = spec.of("inner_exp")
    other = [replace(n, op=op) if n is inner else n for n in spec.nodes]
    with pytest.raises(MirageError):
        Prover(spec).prove(replace(spec, nodes=tuple(other)), small_cases(spec), seed=1)


def test_a_sum_of_exponentials_keeps_the_law_that_its_peak_takes() -> None:
    _, spec = of(lambda x: torch.softmax(torch.softmax(x, -1), -1))
    assert not spec.of("inner_exp")


def test_an_exponential_of_a_logarithm_needs_none() -> None:
    _, spec = of(lambda x: torch.exp(2 * torch.log(1 + torch.exp(x))))
    assert not spec.of("inner_exp")
