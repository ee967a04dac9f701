"""Functions of ATen that are made of the language's are those that PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import DType, with_precision
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.reals import STORAGE
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.recipe import trace

X = torch.empty(6, 40, dtype=torch.bfloat16)

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "erf": lambda x, y: torch.erf(x) + torch.erfc(y),
    "floor and ceil": lambda x, y: torch.floor(3 * x) * torch.ceil(5 * y),
    "round": lambda x, y: torch.round(3 * x) + torch.round(y * 2),
    "trunc and frac": lambda x, y: torch.trunc(4 * x) + torch.frac(3 * y),
    "sign": lambda x, y: torch.sign(x) * y + torch.sgn(x * y),
    "remainder": lambda x, y: torch.remainder(4 * x, 0.7) + torch.remainder(x, y),
    "fmod": lambda x, y: torch.fmod(4 * x, 0.7) + torch.fmod(x, y),
    "floor_divide": lambda x, y: torch.floor_divide(4 * x, 0.7) + y,
    "expm1 and log1p": lambda x, y: torch.expm1(x) + torch.log1p(y.square()),
    "log10": lambda x, y: torch.log10(x.square() + 1) * y,
    "sinh and cosh": lambda x, y: torch.sinh(x) + torch.cosh(y),
    "tan": lambda x, y: torch.tan(x * 0.1) + y,
    "prelu": lambda x, w: F.prelu(x, w),
    "celu": lambda x, y: F.celu(x) + F.celu(y, 0.3),
    "softshrink": lambda x, y: F.softshrink(x) + F.softshrink(y, 0.2),
    "hardshrink": lambda x, y: F.hardshrink(x) + F.hardshrink(y, 0.2),
    "tanhshrink": lambda x, y: F.tanhshrink(x) * y,
    "threshold": lambda x, y: F.threshold(x, 0.1, 20.0) + y,
    "leaky_relu": lambda x, y: F.leaky_relu(x, 1.5) + F.leaky_relu(y, -0.1),
    "logit": lambda x, y: torch.logit(torch.sigmoid(x)) + torch.logit(y, 0.1),
    "hypot": lambda x, y: torch.hypot(x, y) + torch.deg2rad(x) + torch.rad2deg(y),
    "powers": lambda x, y: x.pow(5) + x.pow(-3) * y + y.pow(7) + x.square().pow(0.3) + y.pow(-2),
    "dot": lambda x, w: torch.dot(w, w.abs()) * x,
    "outer": lambda x, w: torch.outer(x.sum(1), w) * x,
    "with_logits": lambda x, y, w: (
        F.binary_cross_entropy_with_logits(x, y, reduction="none")
        + F.binary_cross_entropy_with_logits(x, y, weight=y, pos_weight=w)
    ),
    "rms_norm without eps": lambda x, w: F.rms_norm(x, (40,), w) + F.rms_norm(x, (40,)),
    "norms": lambda x, w: (
        x / torch.linalg.norm(x, dim=-1, keepdim=True) + torch.linalg.norm(w) + torch.linalg.norm(x)
    ),
    "softplus": lambda x, y: F.softplus(x, 1.0, 0.5) + F.softplus(y, 2.0, 1.0) + F.softplus(x * y),
    "logaddexp": lambda x, y: torch.logaddexp(x, y) + torch.logaddexp(x.exp().log(), y.exp().log()),
    "numbers as tensors": lambda x, y: (
        torch.min(x, torch.tensor(0.5)) * torch.max(torch.tensor(-1), y)
        + torch.minimum(torch.full_like(x, 0.2), x)
        + torch.maximum(y, torch.tensor([[-0.3]]).maximum(torch.tensor(-0.5)))
        + torch.clamp(x, torch.tensor(-0.4), torch.tensor(0.4))
        + torch.pow(x, torch.tensor(2)) * torch.remainder(y, torch.tensor(0.7))
    ),
    "elu": lambda x, y: F.selu(x) + F.elu(y, 0.5),
    "margins": lambda x, y: F.soft_margin_loss(x, y) + F.margin_ranking_loss(x, y, x, margin=0.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_computes_what_pytorch_computes(name: str) -> None:
    code = FUNCTIONS[name].__code__
    inputs = {n: X[0] if n == "w" else X for n in code.co_varnames[: code.co_argcount]}
    recipe = from_torch(FUNCTIONS[name], inputs, name="function")
    require_reference(recipe, trace(recipe, recipe.shapes[0], DType.BF16), DType.BF16)


@pytest.mark.parametrize("name", ["expm1", "sinh", "log1p"])
def test_functions_that_are_0_at_0_keep_their_digits_near_it(name: str) -> None:
    function = getattr(torch, name)
    recipe = from_torch(lambda x: function(x), {"x": X}, name="function")
    graph = with_precision(trace(recipe, recipe.shapes[0], DType.BF16), DType.FP32)
    x = torch.logspace(-8, 2, 240) * torch.tensor([1.0, -1.0]).repeat(120)
    (dim,) = graph.inputs[0].out.type.names
    (made,) = results(graph, [Array((dim,), (x.numpy(),))], array_reading(STORAGE, {dim: 240}))
    exact = function(x.double())
    finite = exact.abs() < 1e38
    errors = (torch.from_numpy(made.parts[0]).double() - exact) / exact
    assert errors[finite].abs().max() < 1e-5


FAR = [float("-inf"), float("inf"), -1e30, -300.0, -1.0, 0.0, 2.0, 95.0, 3e20]


@pytest.mark.parametrize("name", ["logaddexp", "hypot"])
def test_functions_of_two_keep_within_what_fp32_holds(name: str) -> None:
    function = getattr(torch, name)
    recipe = from_torch(lambda x, y: function(x, y), {"x": X, "y": X}, name="function")
    graph = with_precision(trace(recipe, recipe.shapes[0], DType.BF16), DType.FP32)
    far = FAR if name == "logaddexp" else FAR[2:]
    x, y = (t.reshape(-1) for t in torch.meshgrid(*[torch.tensor(far)] * 2, indexing="ij"))
    (dim,) = graph.inputs[0].out.type.names
    given = [Array((dim,), (t.numpy(),)) for t in (x, y)]
    (made,) = results(graph, given, array_reading(STORAGE, {dim: len(x)}))
    torch.testing.assert_close(torch.from_numpy(made.parts[0]).float(), function(x, y))


@pytest.mark.parametrize("name", ["elu", "celu", "selu"])
def test_units_of_exponentials_are_linear_up_to_infinity(name: str) -> None:
    function = getattr(F, name)
    recipe = from_torch(lambda x: function(x), {"x": X}, name="function")
    graph = with_precision(trace(recipe, recipe.shapes[0], DType.BF16), DType.FP32)
    x = torch.tensor(FAR)
    (dim,) = graph.inputs[0].out.type.names
    (made,) = results(graph, [Array((dim,), (x.numpy(),))], array_reading(STORAGE, {dim: len(x)}))
    torch.testing.assert_close(torch.from_numpy(made.parts[0]).float(), function(x))


def test_large_whole_powers_are_products() -> None:
    recipe = from_torch(lambda x: x.pow(20) - x.pow(17), {"x": X}, name="function")
    spec = trace(recipe, recipe.shapes[0], DType.BF16)
    require_reference(recipe, spec, DType.BF16)
    assert not spec.of("log")


def test_numbers_whose_squares_overflow_are_compared() -> None:
    recipe = from_torch(lambda x: (200 * (x.abs() + 2)).exp(), {"x": X}, name="function")
    require_reference(recipe, trace(recipe, recipe.shapes[0], DType.BF16), DType.BF16)
