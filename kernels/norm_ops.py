"""The public ops that surround a matrix product: norms and gated activations.

What `mirage_kernels.ops` says of tensors, results, errors and graphs holds here, too, but for the
sizes: these ops take any. Where no kernel of this build serves one it is PyTorch's own program. The
ops with a product inside run them above a kernel's `max_tokens`, around the library's product.
"""

from __future__ import annotations

from typing import overload

from torch import Tensor

from mirage_kernels.argument_checks import given_tensor
from mirage_kernels.compiled import compiled_op, compiled_pair
from mirage_kernels.errors import packed_sentence

_rms_norm = compiled_op("rms_norm")
_rms_norm_residual = compiled_pair("rms_norm")
_rms_norm_add = compiled_op("rms_norm_add")
_layer_norm = compiled_op("layer_norm")
_layer_norm_residual = compiled_pair("layer_norm")
_act_and_mul = compiled_op("act_and_mul")


@overload
def rms_norm(
    x: Tensor,
    norm_weight: Tensor,
    eps: float = 1e-6,
    *,
    residual: None = None,
    weight_offset: float = 0.0,
    constant_weights: bool | None = None,
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
    constant_weights: bool | None = None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]: ...
def rms_norm(
    x: Tensor,
    norm_weight: Tensor,
    eps: float = 1e-6,
    *,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    constant_weights: bool | None = None,
    out: Tensor | tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute x / sqrt(mean(x^2) + eps) * (norm_weight + weight_offset) over the last dim.

    Shapes: x and residual `[..., K]`, norm_weight `[K]`; the result is like x. With `residual` the
    norm is that of x + residual, and the pair `(y, x + residual)` is returned; nothing is changed
    in place, `out` is then a pair too.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
    """
    if residual is not None or isinstance(out, tuple | list):
        return _rms_norm_residual(
            x, norm_weight, eps, residual, weight_offset, out=out, weights=constant_weights
        )
    return _rms_norm(x, norm_weight, eps, weight_offset, out=out, weights=constant_weights)


def rms_norm_add(
    x: Tensor,
    norm_weight: Tensor,
    addend: Tensor,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    constant_weights: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute addend + x / sqrt(mean(x^2) + eps) * (norm_weight + weight_offset).

    That is a norm behind a block, added to the residual (Gemma 2 and 3, with `weight_offset` 1).
    Shapes: x and addend `[..., K]`, norm_weight `[K]`; the result is like x. Nothing is changed in
    place.
    """
    arguments = (x, norm_weight, addend, eps, weight_offset)
    return _rms_norm_add(*arguments, out=out, weights=constant_weights)


@overload
def layer_norm(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: None = None,
    constant_weights: bool | None = None,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def layer_norm(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor,
    constant_weights: bool | None = None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]: ...
def layer_norm(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
    constant_weights: bool | None = None,
    out: Tensor | tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute (x - mean(x)) / sqrt(var(x) + eps) * norm_weight + norm_bias over the last dim.

    Shapes: x and residual `[..., K]`, norm_weight and norm_bias `[K]`; the result is like x. The
    variance is that over K, not K - 1, as PyTorch's. `residual` is as in `rms_norm`: the pair of
    the norm of x + residual and that sum is returned.
    """
    if residual is not None or isinstance(out, tuple | list):
        return _layer_norm_residual(
            x, norm_weight, norm_bias, eps, residual, out=out, weights=constant_weights
        )
    return _layer_norm(x, norm_weight, norm_bias, eps, out=out, weights=constant_weights)


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
    return _act_and_mul(gate, up, activation, out=out)


def _halves(packed: object) -> tuple[Tensor, Tensor]:
    packed = given_tensor("act_and_mul", "gate", packed)
    if packed.dim() == 0 or packed.shape[-1] % 2 != 0:
        raise RuntimeError(packed_sentence("act_and_mul", packed.shape))
    gate, up = packed.chunk(2, dim=-1)
    return gate, up
