"""RMSNorm followed by a linear layer: the input projection of every pre-norm transformer block.

Some models add a bias, store the norm's weight less 1 (Gemma), or norm the sum of x and a residual,
which the next layer reads again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, rms_norm
from mirage_kernels.generator.recipe import form, options, recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own unfused program: a kernel per step, each result rounded to the input's type."""
    from torch.nn.functional import linear
    from torch.nn.functional import rms_norm as torch_rms_norm

    total = x if residual is None else x + residual
    scale = norm_weight + weight_offset if weight_offset else norm_weight
    projected = linear(torch_rms_norm(total, (x.shape[-1],), scale, eps), weight, bias)
    return projected if residual is None else (projected, total)


@options(
    {"bias": "", "residual": "total", "weight_offset": ""},
    form(
        "rms_norm_linear",
        summary="linear(x / sqrt(mean(x^2) + eps) * norm_weight, weight)",
        shapes=(
            shape("Llama-3-8B qkv_proj, TP 1; also the Mirage paper's RMSNorm", K=4096, N=6144),
            shape("Llama-3-8B q_proj, TP 1; Chameleon-7B q_proj", K=4096, N=4096),
            shape("Llama-3-70B qkv_proj, TP 1", K=8192, N=10240),
            shape("Llama-3.2-1B qkv_proj, TP 1", K=2048, N=3072),
            shape("Llama-3.2-1B lm_head, TP 1", K=2048, N=128256),
            shape("Llama-3.2-3B qkv_proj, TP 1", K=3072, N=5120),
            shape("Llama-3.2-3B lm_head, TP 1", K=3072, N=128256),
            shape("Llama-3.1-8B lm_head, TP 1", K=4096, N=128256),
            shape("Llama-3.1-8B qkv_proj, TP 4", K=4096, N=1536),
            shape("Llama-3.1-8B lm_head, TP 4", K=4096, N=32064),
            shape("Llama-3.1-8B qkv_proj, TP 8", K=4096, N=768),
            shape("Llama-3.1-8B lm_head, TP 8", K=4096, N=16032),
            shape("Llama-3.1-70B lm_head, TP 1", K=8192, N=128256),
            shape("Llama-3.1-70B qkv_proj, TP 4", K=8192, N=2560),
            shape("Llama-3.1-70B lm_head, TP 4", K=8192, N=32064),
            shape("Llama-3.1-70B qkv_proj, TP 8", K=8192, N=1280),
            shape("Llama-3.1-70B lm_head, TP 8", K=8192, N=16032),
            shape("Mistral-7B-v0.1 lm_head, TP 1", K=4096, N=32000),
            shape("Mistral-7B-v0.3 lm_head, TP 1", K=4096, N=32768),
            shape("Qwen2.5-7B lm_head, TP 1", K=3584, N=152064),
            shape("Qwen3-8B lm_head, TP 1", K=4096, N=151936),
            shape("Qwen3-32B qkv_proj, TP 1", K=5120, N=10240),
            shape("Qwen3-32B lm_head, TP 1", K=5120, N=151936),
        ),
    ),
    form(
        "rms_norm_linear_full",
        "bias",
        "weight_offset",
        summary="linear(rms_norm(x, norm_weight + weight_offset), weight) + bias",
        shapes=(
            shape("Qwen2-7B qkv_proj, TP 1 (weight_offset is 0)", K=3584, N=4608),
            shape("Gemma-2-9B qkv_proj, TP 1 (no bias, weight_offset is 1)", K=3584, N=8192),
            shape("Llama-3-8B qkv_proj, TP 1 (no bias, weight_offset is 0)", K=4096, N=6144),
            shape("Gemma-2-9B lm_head, TP 1 (no bias, weight_offset is 1)", K=3584, N=256000),
            shape("Gemma-3-12B qkv_proj, TP 1 (no bias, weight_offset is 1)", K=3840, N=8192),
            shape("Gemma-3-12B lm_head, TP 1 (no bias, weight_offset is 1)", K=3840, N=262208),
        ),
    ),
    form(
        "rms_norm_linear_residual",
        "bias",
        "residual",
        "weight_offset",
        summary="linear(rms_norm(total, norm_weight + weight_offset), weight) + bias; "
        "total = x + residual",
        shapes=(
            shape("Qwen2-7B qkv_proj, TP 1 (weight_offset is 0)", K=3584, N=4608),
            shape("Llama-3-8B qkv_proj, TP 1 (no bias, weight_offset is 0)", K=4096, N=6144),
        ),
    ),
)
@recipe(
    inputs={
        "x": "M K",
        "norm_weight": "K",
        "weight": "N K",
        "eps": "",
        "bias": "N",
        "residual": "M K",
        "weight_offset": "",
    },
    output="M N",
    also={"total": "M K"},
    dynamic={"M": 4096},
    scalars={"eps": 1e-6, "weight_offset": 1.0},
    optional=("bias", "weight_offset"),
    reference=reference,
)
def rms_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    weight_offset: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """linear(rms_norm(x + residual, norm_weight + weight_offset), weight) + bias."""
    total = x if residual is None else x + residual
    scale = norm_weight if weight_offset is None else norm_weight + weight_offset
    product = contract(rms_norm(total, scale, eps, over="K"), weight, over="K")
    projected = product if bias is None else product + bias
    return projected if residual is None else (projected, total)
