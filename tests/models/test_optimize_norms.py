"""`optimize` on norms: LayerNorm, and norms behind a block."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mirage_kernels._C")
from torch import Tensor, nn  # noqa: E402

import mirage_kernels  # noqa: E402
from tests.models.test_optimize import (  # noqa: E402
    K,
    N,
    Norm,
    _fresh_graphs,  # noqa: F401
    half,
    optimized,
    replaced,
    tokens,
)


class LayerNormLinear(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(K), nn.Linear(K, N, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_norm_and_its_linear_are_one_call(bias: bool) -> None:
    assert optimized(LayerNormLinear(bias), tokens()) == {"layer_norm_linear": 1}


class WrittenLayerNorm(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        centred = x.float() - x.float().mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)
        return (centred / torch.sqrt(variance + 1e-5)).to(x.dtype) * weight


def test_a_layer_norm_written_out_is_replaced() -> None:
    weight = torch.rand(K, dtype=torch.bfloat16)
    assert optimized(WrittenLayerNorm(), tokens(), weight) == {"layer_norm": 1}


class NormBehind(nn.Module):
    """A norm behind a block, as Gemma's residual takes it in."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.norm = Norm(offset)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return residual + self.norm(x)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_norm_that_is_added_to_a_residual_is_one_call(offset: float) -> None:
    assert optimized(NormBehind(offset), tokens(), 2 * tokens()) == {"rms_norm_add": 1}


class LayerNormOfSum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(K)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = residual + x
        return self.norm(total), total


def test_a_layer_norm_of_a_sum_that_is_kept_is_one_call() -> None:
    assert optimized(LayerNormOfSum(), tokens(), 2 * tokens()) == {"layer_norm residual": 1}


class Head(nn.Module):
    """The last norm and the logits, of which a greedy step takes the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = Norm(), nn.Linear(K, N, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.linear(self.norm(x))
        return logits, logits.argmax(-1)


def test_logits_behind_a_norm_are_one_call_in_front_of_an_argmax() -> None:
    module = half(Head())
    mirage_kernels.optimize(module, fullgraph=True)
    with torch.no_grad():
        logits, token = module(tokens())
    assert replaced(module) == {"rms_norm_linear": 1}
    assert torch.equal(token, logits.argmax(-1))
