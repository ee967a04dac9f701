"""rms_norm_linear on CPU tensors: the recipe's reference behind the op's real front door."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear, rms_norm

from mirage_kernels import rms_norm_linear

K, N = 64, 96
DTYPES = [torch.float16, torch.bfloat16]


def inputs(
    *leading: int, dtype: torch.dtype = torch.float16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, norm_weight, weight = (
        torch.randn(*shape, generator=draw).to(dtype) for shape in ((*leading, K), (K,), (N, K))
    )
    return x, norm_weight, weight


def unfused(x: torch.Tensor, norm_weight: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return linear(rms_norm(x, (x.shape[-1],), norm_weight, 1e-6), weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_pytorch_unfused(dtype: torch.dtype) -> None:
    x, norm_weight, weight = inputs(7, dtype=dtype)
    y = rms_norm_linear(x, norm_weight, weight)
    assert y.dtype == dtype
    assert torch.equal(y, unfused(x, norm_weight, weight))


@pytest.mark.parametrize("leading", [(), (1,), (2, 3), (2, 1, 3), (0,), (2, 0)])
def test_takes_any_leading_dims(leading: tuple[int, ...]) -> None:
    x, norm_weight, weight = inputs(*leading)
    y = rms_norm_linear(x, norm_weight, weight)
    assert y.shape == (*leading, N)
    assert torch.equal(y, unfused(x, norm_weight, weight))


def test_takes_strided_rows() -> None:
    x, norm_weight, weight = inputs(5)
    wide = torch.full((5, K + 8), float("nan"), dtype=x.dtype)
    wide[:, :K] = x
    y = rms_norm_linear(wide[:, :K], norm_weight, weight)
    assert torch.equal(y, unfused(x, norm_weight, weight))


def test_writes_out_and_returns_it() -> None:
    x, norm_weight, weight = inputs(2, 3)
    out = torch.full((2, 3, N), float("nan"), dtype=x.dtype)
    assert rms_norm_linear(x, norm_weight, weight, out=out) is out
    assert torch.equal(out, unfused(x, norm_weight, weight))


def test_eps_defaults_to_one_millionth_and_is_honoured() -> None:
    x, norm_weight, weight = inputs(3)
    default = rms_norm_linear(x, norm_weight, weight)
    assert torch.equal(default, rms_norm_linear(x, norm_weight, weight, 1e-6))
    assert not torch.equal(default, rms_norm_linear(x, norm_weight, weight, 1.0))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_runs_on_parameters_where_gradients_are_off(guard: type[torch.no_grad]) -> None:
    x, norm_weight, weight = inputs(3)
    parameter = torch.nn.Parameter(weight)
    with guard():
        y = rms_norm_linear(x, norm_weight, parameter)
    assert torch.equal(y, unfused(x, norm_weight, weight))
    assert not y.requires_grad


def test_accepts_what_a_gpu_would_not_cover() -> None:
    x, norm_weight, weight = torch.ones(2, 24), torch.ones(24), torch.ones(5, 24)
    y = rms_norm_linear(x.half(), norm_weight.half(), weight.half(), 0.0)
    assert torch.equal(y, torch.full((2, 5), 24.0).half())
