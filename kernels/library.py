"""The ops as PyTorch's own programs: what runs for CPU tensors and above a kernel's `max_tokens`.

They are what a good user of PyTorch would write: one product where weights are packed, fused norms,
sums inside of products. Where this build has kernels for what surrounds a product (`rms_norm`,
`layer_norm`, `act_and_mul`), or for the products behind a norm (`gated_mlp`), they take the place
of PyTorch's. Each program writes into the tensors that come last, whose shapes the compiled op has
checked. Nothing here waits for the GPU or depends on values, so that all of it can be captured in a
CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from mirage_kernels.dispatch import serves

OPS = torch.ops.mirage_kernels

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


def _rows(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])  # also where the last dim is 0


def _rms_norm(x: Tensor, norm_weight: Tensor, eps: float, weight_offset: float) -> Tensor:
    if serves("rms_norm", x, K=x.shape[-1]):
        made: Tensor = OPS.rms_norm(x, norm_weight, eps, weight_offset)
        return made
    return _torch_rms_norm(x, norm_weight, eps, weight_offset)


def _torch_rms_norm(x: Tensor, norm_weight: Tensor, eps: float, weight_offset: float) -> Tensor:
    if weight_offset == 0:
        return functional.rms_norm(x, x.shape[-1:], norm_weight, eps)
    # In fp32: rounded to the tensors' type, 1 + w would lose digits of w that Gemma's models use.
    weight = norm_weight.float() + weight_offset
    return functional.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)


def _layer_norm(x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, eps: float) -> Tensor:
    if serves("layer_norm", x, K=x.shape[-1]):
        made: Tensor = OPS.layer_norm(x, norm_weight, norm_bias, eps)
        return made
    return functional.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(_rows(x), weight.t(), out=_rows(out))
    else:
        torch.addmm(bias, _rows(x), weight.t(), out=_rows(out))


def _gated(gate: Tensor, up: Tensor, activation: str, out: Tensor) -> None:
    recipe: str = OPS._recipe_of("act_and_mul", activation)
    if serves(recipe, gate, N=gate.shape[-1]):
        OPS.act_and_mul.out(gate, up, activation, out=out)
    else:
        act_and_mul(gate, up, activation, out=out)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    out: Tensor,
) -> None:
    if residual is None:
        _linear(x, weight, bias, out)
    elif bias is None:
        torch.addmm(_rows(residual), _rows(x), weight.t(), out=_rows(out))
    else:
        torch.add(residual, functional.linear(x, weight, bias), out=out)


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
    _linear(_rms_norm(x, norm_weight, eps, weight_offset), weight, bias, out)


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
    normed = _norm_of_sum(x, residual, (norm_weight, eps, weight_offset), total)
    _linear(normed, weight, bias, out)


def _norm_of_sum(
    x: Tensor, residual: Tensor, norm: tuple[Tensor, float, float], total: Tensor
) -> Tensor:
    norm_weight, eps, weight_offset = norm
    if serves("rms_norm_residual", x, K=x.shape[-1]):
        normed = torch.empty_like(total)
        given = (x, norm_weight, eps, residual, weight_offset)
        OPS.rms_norm.residual_out(*given, out=normed, total=total)
        return normed
    torch.add(x, residual, out=total)
    return _rms_norm(total, *norm)


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
    _linear(_layer_norm(x, norm_weight, norm_bias, eps), weight, bias, out)


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
    _linear(x, weight, bias, out)
    low = _rows(x) @ lora_a.t()  # [M, R]
    _rows(out).addmm_(low, lora_b.t(), alpha=scale)


# Up to this many tokens per adapter it is cheaper to gather the tokens' adapters, which are then
# read three times, than to multiply with every adapter of the stack.
_TOKENS_PER_ADAPTER = 1 / 3


def lora_linear_batched(
    x: Tensor,
    weight: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    adapter_ids: Tensor,
    scale: float,
    bias: Tensor | None = None,
    *,
    out: Tensor,
) -> None:
    _linear(x, weight, bias, out)
    ids = adapter_ids.reshape(-1, 1)  # [M, 1]
    tokens, adapters = ids.shape[0], lora_a.shape[0]
    if adapters == 0:
        return
    if tokens <= _TOKENS_PER_ADAPTER * adapters:
        chosen = ids[:, 0].clamp(0, adapters - 1)
        low = torch.bmm(lora_a[chosen], _rows(x)[..., None])  # [M, R, 1]
        adapted = torch.bmm(lora_b[chosen], low)[..., 0]  # [M, N]
        has_adapter = (ids >= 0) & (ids < adapters)
        _rows(out).add_(torch.where(has_adapter, adapted, 0), alpha=scale)
        return
    low = (_rows(x) @ lora_a.flatten(0, 1).t()).view(tokens, *lora_a.shape[:2])  # [M, A, R]
    own = ids == torch.arange(adapters, device=ids.device)  # [M, A]
    low = torch.where(own[..., None], low, 0).flatten(1)  # [M, A R]
    # Copied as [N, A R]: turned as well it took 162 us in all instead of 91 (64 tokens, 64 x R 64).
    _rows(out).addmm_(low, lora_b.transpose(0, 1).flatten(1).t(), alpha=scale)


def gated_mlp(
    x: Tensor, gate_weight: Tensor, up_weight: Tensor, activation: str, *, out: Tensor
) -> None:
    rows = _rows(x)
    _gated(rows @ gate_weight.t(), rows @ up_weight.t(), activation, _rows(out))


def gated_mlp_packed(x: Tensor, gate_up_weight: Tensor, activation: str, *, out: Tensor) -> None:
    gate, up = (_rows(x) @ gate_up_weight.t()).chunk(2, dim=-1)
    _gated(gate, up, activation, _rows(out))


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
    normed = _rms_norm(x, norm_weight, eps, weight_offset)
    _normed_gated_mlp(normed, gate_weight, up_weight, activation, out)


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
    normed = _rms_norm(x, norm_weight, eps, weight_offset)
    _normed_gated_mlp(normed, gate_up_weight, None, activation, out)


def rms_norm_gated_mlp_residual(
    x: Tensor,
    norm_weight: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor,
    eps: float,
    activation: str,
    residual: Tensor,
    weight_offset: float = 0.0,
    *,
    out: Tensor,
    total: Tensor,
) -> None:
    normed = _norm_of_sum(x, residual, (norm_weight, eps, weight_offset), total)
    _normed_gated_mlp(normed, gate_weight, up_weight, activation, out)


def rms_norm_gated_mlp_packed_residual(
    x: Tensor,
    norm_weight: Tensor,
    gate_up_weight: Tensor,
    eps: float,
    activation: str,
    residual: Tensor,
    weight_offset: float = 0.0,
    *,
    out: Tensor,
    total: Tensor,
) -> None:
    normed = _norm_of_sum(x, residual, (norm_weight, eps, weight_offset), total)
    _normed_gated_mlp(normed, gate_up_weight, None, activation, out)


def _normed_gated_mlp(
    normed: Tensor, gate: Tensor, up: Tensor | None, activation: str, out: Tensor
) -> None:
    """Compute the products behind a norm; without `up`, `gate` holds both."""
    has_kernel = _has_gated_mlp(normed, gate.shape[0] // (2 if up is None else 1), activation)
    if up is None:
        packed = OPS.gated_mlp.packed_out if has_kernel else gated_mlp_packed
        packed(normed, gate, activation, out=out)
    else:
        program = OPS.gated_mlp.out if has_kernel else gated_mlp
        program(normed, gate, up, activation, out=out)


def _has_gated_mlp(x: Tensor, rows: int, activation: str) -> bool:
    """Say whether a kernel serves the products, of `rows` each, behind a norm of our own.

    In fp16 the norm is faster apart above 32 tokens, 61.5 us against 64.1 (4096 -> 2 x 14336, 64
    tokens): a fused kernel cannot hold fp16 tokens scaled by a norm in registers.
    """
    return serves(OPS._recipe_of("gated_mlp", activation), x, K=x.shape[-1], N=rows)


def ntrans(h: Tensor, x: Tensor, alpha: Tensor, *, out: Tensor) -> None:
    # In fp32: a length may be above what fp16 holds, and the components of a step below it.
    moved = torch.lerp(h.float(), functional.normalize(x.float(), dim=-1), alpha.float())
    out.copy_(functional.normalize(moved, dim=-1))


def rms_norm(
    x: Tensor, norm_weight: Tensor, eps: float, weight_offset: float = 0.0, *, out: Tensor
) -> None:
    out.copy_(_torch_rms_norm(x, norm_weight, eps, weight_offset))


def rms_norm_residual(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    residual: Tensor,
    weight_offset: float = 0.0,
    *,
    out: Tensor,
    total: Tensor,
) -> None:
    torch.add(x, residual, out=total)
    out.copy_(_torch_rms_norm(total, norm_weight, eps, weight_offset))


def rms_norm_add(
    x: Tensor,
    norm_weight: Tensor,
    addend: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    *,
    out: Tensor,
) -> None:
    torch.add(addend, _torch_rms_norm(x, norm_weight, eps, weight_offset), out=out)


def layer_norm(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, eps: float, *, out: Tensor
) -> None:
    out.copy_(functional.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps))


def layer_norm_residual(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    eps: float,
    residual: Tensor,
    *,
    out: Tensor,
    total: Tensor,
) -> None:
    torch.add(x, residual, out=total)
    layer_norm(total, norm_weight, norm_bias, eps, out=out)


def act_and_mul(gate: Tensor, up: Tensor, activation: str, *, out: Tensor) -> None:
    torch.mul(ACTIVATIONS[activation](gate), up, out=out)
