"""A linear layer with a LoRA adapter beside it, unmerged: adapters may change per request.

With a bias, or behind an RMSNorm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, rms_norm
from mirage_kernels.generator.recipe import form, options, recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    lora_a: torch.Tensor,
    lora_b: torch.Tensor,
    scale: float,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """PyTorch's own unfused program, as PEFT writes it: three matmuls, a scaling and an add."""
    from torch.nn.functional import linear
    from torch.nn.functional import rms_norm as torch_rms_norm

    if norm_weight is not None:
        x = torch_rms_norm(x, (x.shape[-1],), norm_weight, eps)
    return linear(x, weight, bias) + linear(linear(x, lora_a), lora_b) * scale


@options(
    {"bias": "", "norm_weight": "eps"},
    form(
        "lora_linear",
        summary="linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)",
        shapes=(
            shape("the Mirage paper's LoRA", K=256, N=4096, R=16),
            shape("Llama-3-8B q_proj and o_proj, TP 1; Qwen3-8B q_proj", K=4096, N=4096, R=16),
            shape("Llama-3-8B q_proj and o_proj, TP 1; Qwen3-8B q_proj", K=4096, N=4096, R=64),
            shape("Llama-3-8B k_proj and v_proj, TP 1; q_proj, TP 4", K=4096, N=1024, R=16),
            shape("Llama-3-70B q_proj and o_proj, TP 1", K=8192, N=8192, R=16),
            shape("Llama-3-70B q_proj, TP 4", K=8192, N=2048, R=16),
            shape("Llama-3-70B q_proj, TP 8; k_proj and v_proj, TP 1", K=8192, N=1024, R=16),
            shape("Qwen3-32B q_proj, TP 1", K=5120, N=8192, R=16),
        ),
    ),
    form(
        "lora_linear_full",
        "bias",
        summary="linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias",
        stacked=("lora_a", "lora_b"),
        shapes=(
            shape("the Mirage paper's LoRA (no bias)", K=256, N=4096, R=16),
            shape("Llama-3-8B q_proj and o_proj, TP 1 (no bias)", K=4096, N=4096, R=16),
            shape("Llama-3-8B q_proj and o_proj, TP 1 (no bias)", K=4096, N=4096, R=64),
            shape("Qwen2-7B q_proj, TP 1", K=3584, N=3584, R=16),
        ),
    ),
    form(
        "rms_norm_lora",
        "norm_weight",
        summary="lora_linear(rms_norm(x), weight, lora_a, lora_b, scale)",
        shapes=(
            shape("Llama-3-8B and Qwen3-8B q_proj, TP 1", K=4096, N=4096, R=16),
            shape("Llama-3-8B and Qwen3-8B q_proj, TP 1", K=4096, N=4096, R=64),
            shape("Llama-3-8B k_proj and v_proj, TP 1; q_proj, TP 4", K=4096, N=1024, R=16),
            shape("Llama-3-70B q_proj, TP 1", K=8192, N=8192, R=16),
        ),
    ),
)
@recipe(
    inputs={
        "x": "M K",
        "norm_weight": "K",
        "weight": "N K",
        "lora_a": "R K",
        "lora_b": "N R",
        "scale": "",
        "eps": "",
        "bias": "N",
    },
    output="M N",
    dynamic={"M": 4096},
    scalars={"scale": 2.0, "eps": 1e-5},
    optional=("bias",),
    reference=reference,
)
def lora_linear(
    x: Tensor,
    norm_weight: Tensor | None = None,
    *,
    weight: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    scale: Tensor,
    eps: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias, x normed or not."""
    if norm_weight is not None and eps is not None:
        x = rms_norm(x, norm_weight, eps, over="K")
    adapted = contract(contract(x, lora_a, over="K"), lora_b, over="R")
    product = contract(x, weight, over="K") + adapted * scale
    return product if bias is None else product + bias
