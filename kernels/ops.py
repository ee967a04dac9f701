"""The public ops: typed functions that go straight to the compiled ones.

What holds for all of them. Tensors are fp16 or bf16, all alike; accumulation is fp32. x is
`[..., K]` with any leading dims (none and empty ones too), M tokens together; its rows may be
strided if they start at multiples of 16 bytes, any other x is copied first. Weights are `[N, K]` as
in torch.nn.Linear and must be contiguous. Results are `[..., N]`; with `out` (of that shape,
contiguous, sharing no memory with the inputs) the result is written there and `out` is returned.

`constant_weights=True` promises for one call what `mirage_kernels.constant_weights` promises for
more of them.

On a GPU a call launches one kernel on the current stream: no synchronisation, no memory but the
result, so it can be captured in a CUDA graph and traced by torch.compile. Above the kernel's
`max_tokens` (see `mirage_kernels.kernel_table`) PyTorch's matrix product is faster and runs
instead, with our norm in front of it or our activation behind it (`mirage_kernels.norm_ops`).
An option that the kernel does not take is a small call before or after it, which may need memory
that is freed again. CPU tensors run PyTorch's program at any size.

All raise RuntimeError, in one sentence, for a wrong argument, for static dims (K, N, ...) that no
compiled kernel covers (ask `mirage_kernels.supports` first), and for a GPU of another architecture
than this build's; InferenceOnlyError for inputs that require grad.
"""

from __future__ import annotations

from typing import overload

from torch import Tensor

from mirage_kernels.compiled import compiled_op, compiled_pair

_linear = compiled_op("linear")
_rms_norm_linear = compiled_op("rms_norm_linear")
_rms_norm_linear_residual = compiled_pair("rms_norm_linear")
_layer_norm_linear = compiled_op("layer_norm_linear")
_lora_linear = compiled_op("lora_linear")
_lora_linear_batched = compiled_op("lora_linear", "batched")
_gated_mlp = compiled_op("gated_mlp")
_gated_mlp_packed = compiled_op("gated_mlp", "packed")
_rms_norm_gated_mlp = compiled_op("rms_norm_gated_mlp")
_rms_norm_gated_mlp_packed = compiled_op("rms_norm_gated_mlp", "packed")
_rms_norm_gated_mlp_residual = compiled_pair("rms_norm_gated_mlp")
_rms_norm_gated_mlp_packed_residual = compiled_pair("rms_norm_gated_mlp", "packed_residual")
_ntrans = compiled_op("ntrans")


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    constant_weights: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute residual + linear(x, weight) + bias in one kernel that reads the weights once.

    Shapes: x `[..., K]`, weight `[N, K]`, bias `[N]`, residual `[..., N]`. The sum is rounded once.

    `out` may be residual itself, which is then added to in place. This form takes any size: where
    no kernel serves it PyTorch's program does.
    """
    return _linear(x, weight, bias, residual, out=out, weights=constant_weights)


@overload
def rms_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    *,
    bias: Tensor | None = None,
    residual: None = None,
    weight_offset: float = 0.0,
    constant_weights: bool | None = None,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def rms_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    *,
    bias: Tensor | None = None,
    residual: Tensor,
    weight_offset: float = 0.0,
    constant_weights: bool | None = None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]: ...
def rms_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    constant_weights: bool | None = None,
    out: Tensor | tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute linear(rms_norm(x) * norm_weight, weight) in one kernel that reads the weights once.

        y[m, n] = sum_k weight[n, k] * norm_weight[k] * x[m, k] / sqrt(mean_k(x[m, k]^2) + eps)

    Shapes: x `[..., K]`, norm_weight `[K]`, weight `[N, K]`, bias `[N]`, residual like x.

    `weight_offset` is added to norm_weight: 1 for Gemma, whose checkpoints hold w of 1 + w. With
    `residual` the op works on x + residual and returns the pair `(y, total)`: total is that sum,
    rounded to the tensors' type, the next residual (the norm may take it before it is rounded).
    Nothing is changed in place; `out` is then a pair too. For few tokens one kernel makes both
    (`rms_norm_linear_residual` in `kernel_table()`).

    Source: the fused RMSNorm muGraph that the Mirage superoptimizer paper reports.
    """
    if residual is not None or isinstance(out, tuple | list):
        args = (x, norm_weight, weight, eps, bias, residual, weight_offset)
        return _rms_norm_linear_residual(*args, out=out, weights=constant_weights)
    return _rms_norm_linear(
        x, norm_weight, weight, eps, bias, weight_offset, out=out, weights=constant_weights
    )


def layer_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    weight: Tensor,
    eps: float = 1e-5,
    *,
    bias: Tensor | None = None,
    constant_weights: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute linear(layer_norm(x) * norm_weight + norm_bias, weight) + bias in one kernel.

    Shapes: x `[..., K]`, norm_weight and norm_bias `[K]`, weight `[N, K]`, bias `[N]`. The norm is
    PyTorch's: `(x - mean(x)) / sqrt(var(x) + eps)` with the variance over K, not K - 1.
    """
    return _layer_norm_linear(
        x, norm_weight, norm_bias, weight, eps, bias, out=out, weights=constant_weights
    )


def lora_linear(
    x: Tensor,
    weight: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    scale: float,
    *,
    bias: Tensor | None = None,
    adapter_ids: Tensor | None = None,
    constant_weights: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias.

    Shapes: x `[..., K]`, weight `[N, K]`, lora_a `[R, K]`, lora_b `[N, R]`, bias `[N]`. R is the
    adapter's rank; PEFT's `scaling` is alpha / R, or alpha / sqrt(R) for rsLoRA.

    Batched: with `adapter_ids` (int32 or int64, on x's device, shaped like x without its last dim)
    each token has its own adapter from the stacks lora_a `[adapters, R, K]` and lora_b
    `[adapters, N, R]`; -1 means none, and so does any other number that is no adapter's, unless
    checking mode (`mirage_kernels.checking`) is on and names it. Ids may be in any order and are
    read on the device. This form takes any size. Where a kernel serves it
    (`lora_linear_batched` in `kernel_table()`, up to its `max_tokens`) a call is two launches and a
    workspace of `[M, R]`. PyTorch's program, which runs otherwise, multiplies many tokens by all
    adapters and takes times 0 what is not their own: fill unused places of the stacks and ranks
    below R with zeros.
    """
    if adapter_ids is None:
        return _lora_linear(
            x, weight, lora_a, lora_b, scale, bias, out=out, weights=constant_weights
        )
    return _lora_linear_batched(
        x, weight, lora_a, lora_b, adapter_ids, scale, bias, out=out, weights=constant_weights
    )


def gated_mlp(
    x: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None = None,
    *,
    activation: str = "silu",
    constant_weights: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute activation(linear(x, gate_weight)) * linear(x, up_weight) in one kernel.

    Shapes: x `[..., K]`, gate_weight and up_weight `[N, K]`; or one packed weight `[2 N, K]`, all
    rows of the gate first, as serving stacks keep it: `gated_mlp(x, gate_up_weight)`. Activations:
    "silu" (Llama), "gelu", "gelu_tanh" (Gemma), "relu".
    """
    if up_weight is None:
        return _gated_mlp_packed(x, gate_weight, activation, out=out, weights=constant_weights)
    return _gated_mlp(x, gate_weight, up_weight, activation, out=out, weights=constant_weights)


@overload
def rms_norm_gated_mlp(
    x: Tensor,
    norm_weight: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    activation: str = "silu",
    residual: None = None,
    weight_offset: float = 0.0,
    constant_weights: bool | None = None,
    out: Tensor | None = None,
) -> Tensor: ...
@overload
def rms_norm_gated_mlp(
    x: Tensor,
    norm_weight: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    activation: str = "silu",
    residual: Tensor,
    weight_offset: float = 0.0,
    constant_weights: bool | None = None,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]: ...
def rms_norm_gated_mlp(
    x: Tensor,
    norm_weight: Tensor,
    gate_weight: Tensor,
    up_weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    activation: str = "silu",
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    constant_weights: bool | None = None,
    out: Tensor | tuple[Tensor, Tensor] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute gated_mlp(rms_norm(x) * (norm_weight + weight_offset), ...) in one kernel.

    Shapes and activations are those of `gated_mlp`, the norm is that of `rms_norm_linear`;
    `rms_norm_gated_mlp(x, norm_weight, gate_up_weight)` takes a packed weight `[2 N, K]`. With
    `residual`, like x, the op works on x + residual and returns the pair `(y, total)`, as
    `rms_norm_linear` does; where no kernel makes both, one of ours makes the sum first.
    """
    if residual is not None or isinstance(out, tuple | list):
        sums = (eps, activation, residual, weight_offset)
        if up_weight is None:
            return _rms_norm_gated_mlp_packed_residual(
                x, norm_weight, gate_weight, *sums, out=out, weights=constant_weights
            )
        return _rms_norm_gated_mlp_residual(
            x, norm_weight, gate_weight, up_weight, *sums, out=out, weights=constant_weights
        )
    options = (eps, activation, weight_offset)
    if up_weight is None:
        return _rms_norm_gated_mlp_packed(
            x, norm_weight, gate_weight, *options, out=out, weights=constant_weights
        )
    return _rms_norm_gated_mlp(
        x, norm_weight, gate_weight, up_weight, *options, out=out, weights=constant_weights
    )


def ntrans(
    h: Tensor,
    x: Tensor,
    alpha: Tensor,
    *,
    constant_weights: bool | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute normalize(h + alpha * (normalize(x) - h)), the residual step of nGPT, in one kernel.

    normalize(x) = x / sqrt(sum_k x[m, k]^2). Shapes: h and x `[..., K]`, alpha `[K]`; the result is
    like h. Hidden states h move along the unit sphere towards a block's output x.

    Source: nTrans of the Mirage paper; Loshchilov et al., nGPT (2024).
    """
    return _ntrans(h, x, alpha, out=out, weights=constant_weights)
