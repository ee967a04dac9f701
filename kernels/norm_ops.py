"""The public ops that surround a matrix product: norms and gated activations.

What `mirage_kernels.ops` says of tensors, results, errors and graphs holds here, too, but for the
sizes: these ops take any. Where no kernel of this build serves one it is PyTorch's own program. The
ops with a product inside run them above a kernel's `max_tokens`, around the library's product.
"""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor

from mirage_kernels.attention_call import given_tensor
from mirage_kernels.errors import packed_sentence
from mirage_kernels.ops import refuse_grad, result_pair

_OPS = torch.ops.mirage_kernels


@overload
def rms_norm(
    x: Tensor,
    norm_weight: Tensor,
    eps: float = 1e-6,
    *,
    residual: None = None,
    weight_offset: float = 0.0,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def rms_norm(
    x: Tensor,
    norm_weight: Tensor,
    eps: float = 1e-6,
    *,
    residual: Tensor,
    weight_offset: float = 0.0,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]: ...
def rms_norm(
    x: Tensor,
    norm_weight: Tensor,
    eps: float = 1e-6,
    *,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    out: Tensor | tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute x / sqrt(mean(x^2) + eps) * (norm_weight + weight_offset) over the last dim.

    Shapes: x and residual `[..., K]`, norm_weight `[K]`; the result is like x. With `residual` the
    norm is that of x + residual, and the pair `(y, x + residual)` is returned; nothing is changed
    in place, `out` is then a pair too.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
    """
    if torch.is_grad_enabled():
        refuse_grad("rms_norm", x, norm_weight=norm_weight, residual=residual)
    args = (x, norm_weight, eps)
    if residual is not None or isinstance(out, tuple | list):
        if out is None:
            made: tuple[Tensor, Tensor] = _OPS.rms_norm.residual(*args, residual, weight_offset)
            return made
        y, total = result_pair("rms_norm", residual, out)
        _OPS.rms_norm.residual_out(*args, residual, weight_offset, out=y, total=total)
        return y, total
    if out is None:
        normed: Tensor = _OPS.rms_norm.default(*args, weight_offset)
        return normed
    _OPS.rms_norm.out(*args, weight_offset, out=out)
    return out


def layer_norm(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Compute (x - mean(x)) / sqrt(var(x) + eps) * norm_weight + norm_bias over the last dim.

    Shapes: x `[..., K]`, norm_weight and norm_bias `[K]`; the result is like x. The variance is
    that over K, not K - 1, as PyTorch's.
    """
    if torch.is_grad_enabled():
        refuse_grad("layer_norm", x, norm_weight=norm_weight, norm_bias=norm_bias)
    if out is None:
        normed: Tensor = _OPS.layer_norm.default(x, norm_weight, norm_bias, eps)
        return normed
    _OPS.layer_norm.out(x, norm_weight, norm_bias, eps, out=out)
    return out


def act_and_mul(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    activation: str = "silu",
    out: Tensor | None = None,
) -> Tensor:
    """Compute activation(gate) * up.

    Shapes: gate and up `[..., N]`, rows may be strided; or one tensor `[..., 2 N]` with the gate
    first, as a packed product leaves it: `act_and_mul(gate_up)`. The result is `[..., N]`.
    Activations: "silu", "gelu", "gelu_tanh", "relu".
    """
    if up is None:
        gate, up = _halves(gate)
    if torch.is_grad_enabled():
        refuse_grad("act_and_mul", gate=gate, up=up)
    if out is None:
        made: Tensor = _OPS.act_and_mul.default(gate, up, activation)
        return made
    _OPS.act_and_mul.out(gate, up, activation, out=out)
    return out


def _halves(packed: object) -> tuple[Tensor, Tensor]:
    packed = given_tensor("act_and_mul", "gate", packed)
    if packed.dim() == 0 or packed.shape[-1] % 2 != 0:
        raise RuntimeError(packed_sentence("act_and_mul", packed.shape))
    gate, up = packed.chunk(2, dim=-1)
    return gate, up
