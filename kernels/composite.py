"""Options that a kernel does not take: the op without them, and before and after what they add.

The compiled op calls these programs, and they call it. Each writes into the tensors that come last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mirage_kernels.assumptions import fresh_weights
from mirage_kernels.dispatch import serves

OPS = torch.ops.mirage_kernels
# Tokens whose sum a norm makes sooner than PyTorch: of 32 18.0 us in all, not 18.7 (4096 -> 6144);
# of 64 20.5, not 19.8.
_FEW = 32


def _add_bias(bias: Tensor | None, out: Tensor) -> None:
    if bias is not None:
        out.add_(bias)


def _shifted(norm_weight: Tensor, weight_offset: float) -> Tensor:
    return norm_weight + weight_offset if weight_offset else norm_weight


def rms_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    bias: Tensor | None = None,
    weight_offset: float = 0.0,
    *,
    out: Tensor,
) -> None:
    with fresh_weights():
        OPS.rms_norm_linear.out(x, _shifted(norm_weight, weight_offset), weight, eps, out=out)
    _add_bias(bias, out)


def rms_norm_linear_residual(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    bias: Tensor | None,
    residual: Tensor,
    weight_offset: float = 0.0,
    *,
    out: Tensor,
    total: Tensor,
) -> None:
    few = x.numel() <= _FEW * x.shape[-1]
    if few and serves("rms_norm_residual", x, K=x.shape[-1]):
        # Its norm is not used, but what follows starts while it runs, unlike after PyTorch's sum.
        given = (x, norm_weight, eps, residual, weight_offset)
        OPS.rms_norm.residual_out(*given, out=torch.empty_like(total), total=total)
    else:
        torch.add(x, residual, out=total)
    # Through the op: its kernel may take the other options.
    OPS.rms_norm_linear.out(total, norm_weight, weight, eps, bias, weight_offset, out=out)


def layer_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    weight: Tensor,
    eps: float,
    bias: Tensor | None = None,
    *,
    out: Tensor,
) -> None:
    shift = torch.zeros_like(norm_weight) if norm_bias is None else norm_bias
    with fresh_weights():
        OPS.layer_norm_linear.out(x, norm_weight, shift, weight, eps, out=out)
    _add_bias(bias, out)


def lora_linear(
    x: Tensor,
    weight: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    scale: float,
    bias: Tensor | None = None,
    *,
    out: Tensor,
) -> None:
    OPS.lora_linear.out(x, weight, lora_a, lora_b, scale, out=out)
    _add_bias(bias, out)


def rms_norm_gated_mlp(
    x: Tensor,
    norm_weight: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor,
    eps: float,
    activation: str,
    weight_offset: float = 0.0,
    *,
    out: Tensor,
) -> None:
    shifted = _shifted(norm_weight, weight_offset)
    with fresh_weights():
        OPS.rms_norm_gated_mlp.out(x, shifted, gate_weight, up_weight, eps, activation, out=out)


def rms_norm_gated_mlp_packed(
    x: Tensor,
    norm_weight: Tensor,
    gate_up_weight: Tensor,
    eps: float,
    activation: str,
    weight_offset: float = 0.0,
    *,
    out: Tensor,
) -> None:
    shifted = _shifted(norm_weight, weight_offset)
    with fresh_weights():
        OPS.rms_norm_gated_mlp.packed_out(x, shifted, gate_up_weight, eps, activation, out=out)
