"""The ops in plain PyTorch, for any type: what the cases compute in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

NORM = {"x", "norm_weight", "eps", "weight_offset", "residual"}


def exact_rms_norm(
    x: Tensor,
    norm_weight: Tensor,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
) -> Tensor | tuple[Tensor, Tensor]:
    total = x if residual is None else x + residual
    root = torch.sqrt(total.square().mean(-1, keepdim=True) + eps)
    y = total / root * (norm_weight + weight_offset)
    return y if residual is None else (y, total)


def exact_rms_norm_add(
    x: Tensor, norm_weight: Tensor, addend: Tensor, eps: float = 1e-6, weight_offset: float = 0.0
) -> Tensor:
    root = torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    return addend + x / root * (norm_weight + weight_offset)


def exact_layer_norm(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    total = x if residual is None else x + residual
    centred = total - total.mean(-1, keepdim=True)
    normed = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps) * norm_weight
    normed = normed if norm_bias is None else normed + norm_bias
    return normed if residual is None else (normed, total)


def exact_linear(
    x: Tensor, weight: Tensor, bias: Tensor | float = 0.0, residual: Tensor | float = 0.0
) -> Tensor:
    return residual + x @ weight.t() + bias


def exact_rms_norm_linear(
    weight: Tensor, bias: Tensor | float = 0.0, **norm: Any
) -> tuple[Tensor, ...]:
    y, *total = results(exact_rms_norm(**norm))
    return (y @ weight.t() + bias, *total)


def exact_layer_norm_linear(weight: Tensor, bias: Tensor | float = 0.0, **norm: Any) -> Tensor:
    (normed,) = results(exact_layer_norm(**norm))
    return normed @ weight.t() + bias


def exact_lora_linear(
    x: Tensor,
    weight: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    scale: float,
    bias: Tensor | float = 0.0,
    adapter_ids: Tensor | None = None,
) -> Tensor:
    y = x @ weight.t() + bias
    if adapter_ids is None:
        return y + scale * (x @ lora_a.t()) @ lora_b.t()
    adapted = torch.zeros_like(y)
    for i in range(lora_a.shape[0]):
        mine = adapter_ids == i
        adapted[mine] = x[mine] @ lora_a[i].t() @ lora_b[i].t()
    return y + scale * adapted


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x / 2 * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": lambda x: x.clamp(min=0),
}


def exact_gated_mlp(
    x: Tensor, gate_weight: Tensor, up_weight: Tensor | None = None, activation: str = "silu"
) -> Tensor:
    gate, up = gate_weight.chunk(2) if up_weight is None else (gate_weight, up_weight)
    return ACTIVATIONS[activation](x @ gate.t()) * (x @ up.t())


def exact_rms_norm_gated_mlp(**given: Any) -> tuple[Tensor, ...]:
    norm = {name: given.pop(name) for name in NORM & {*given}}
    normed, *total = results(exact_rms_norm(**norm))
    return (exact_gated_mlp(normed, **given), *total)


def exact_ntrans(h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    moved = h + alpha * (x / x.norm(dim=-1, keepdim=True) - h)
    return moved / moved.norm(dim=-1, keepdim=True)


def exact_act_and_mul(gate: Tensor, up: Tensor, *, activation: str = "silu") -> Tensor:
    return ACTIVATIONS[activation](gate) * up


def results(value: object) -> tuple[Tensor, ...]:
    """Return one result or several as a tuple."""
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def same(a: object, b: object) -> bool:
    """Say whether two results have the same bits."""
    return all(map(torch.equal, results(a), results(b)))
