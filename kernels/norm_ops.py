"""The public ops that surround a matrix product: norms and gated activations.

What `mirage_kernels.ops` says of tensors, results, errors and graphs holds here, too, but for the
sizes: these ops take any. Where no kernel of this build serves one it is PyTorch's own program. The
ops with a product inside run them above a kernel's `max_tokens`, around the library's product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor

from mirage_kernels.errors import packed_sentence
from mirage_kernels.given import compiled, given_tensor, refuse_grad
from mirage_kernels.ops import result_pair

_OPS = torch.ops.mirage_kernels
_Made = Callable[..., Tensor]
_Into = Callable[..., None]
_rms_norm: _Made = compiled("rms_norm", _OPS.rms_norm.default)
_rms_norm_out: _Into = compiled("rms_norm", _OPS.rms_norm.out)
_rms_norm_residual: Callable[..., tuple[Tensor, Tensor]] = compiled(
    "rms_norm", _OPS.rms_norm.residual
)
_rms_norm_residual_out: _Into = compiled("rms_norm", _OPS.rms_norm.residual_out)
_layer_norm: _Made = compiled("layer_norm", _OPS.layer_norm.default)
_layer_norm_out: _Into = compiled("layer_norm", _OPS.layer_norm.out)
_act_and_mul: _Made = compiled("act_and_mul", _OPS.act_and_mul.default)
_act_and_mul_out: _Into = compiled("act_and_mul", _OPS.act_and_mul.out)


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
        refuse_grad("rms_norm", x=x, norm_weight=norm_weight, residual=residual, out=out)
    args = (x, norm_weight, eps)
    if residual is not None or isinstance(out, tuple | list):
        if out is None:
            return _rms_norm_residual(*args, residual, weight_offset)
        y, total = result_pair("rms_norm", residual, out)
        _rms_norm_residual_out(*args, residual, weight_offset, out=y, total=total)
        return y, total
    if out is None:
        return _rms_norm(*args, weight_offset)
    _rms_norm_out(*args, weight_offset, out=out)
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
        refuse_grad("layer_norm", x=x, norm_weight=norm_weight, norm_bias=norm_bias, out=out)
    if out is None:
        return _layer_norm(x, norm_weight, norm_bias, eps)
    _layer_norm_out(x, norm_weight, norm_bias, eps, out=out)
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
        refuse_grad("act_and_mul", gate=gate, up=up, out=out)
    if out is None:
        return _act_and_mul(gate, up, activation)
    _act_and_mul_out(gate, up, activation, out=out)
    return out


def _halves(packed: object) -> tuple[Tensor, Tensor]:
    packed = given_tensor("act_and_mul", "gate", packed)
    if packed.dim() == 0 or packed.shape[-1] % 2 != 0:
        raise RuntimeError(packed_sentence("act_and_mul", packed.shape))
    gate, up = packed.chunk(2, dim=-1)
    return gate, up
