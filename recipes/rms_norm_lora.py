"""RMSNorm followed by a linear layer with a LoRA adapter beside it, unmerged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, rms_norm
from mirage_kernels.generator.recipe import recipe, shape
from mirage_kernels.recipes.lora_linear import reference as unfused_lora_linear

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    lora_a: torch.Tensor,
    lora_b: torch.Tensor,
    scale: float,
    eps: float,
) -> torch.Tensor:
    """PyTorch's own unfused program: the normalised x rounded to the input's type, then PEFT's."""
    from torch.nn.functional import rms_norm as torch_rms_norm

    normed = torch_rms_norm(x, (x.shape[-1],), norm_weight, eps)
    return unfused_lora_linear(normed, weight, lora_a, lora_b, scale)


@recipe(
    inputs={
        "x": "M K",
        "norm_weight": "K",
        "weight": "N K",
        "lora_a": "R K",
        "lora_b": "N R",
        "scale": "",
        "eps": "",
    },
    output="M N",
    dynamic={"M": 4096},
    scalars={"scale": 2.0, "eps": 1e-5},
    reference=reference,
    shapes=(
        shape("Llama-3-8B and Qwen3-8B q_proj, TP 1", K=4096, N=4096, R=16),
        shape("Llama-3-8B and Qwen3-8B q_proj, TP 1", K=4096, N=4096, R=64),
        shape("Llama-3-8B k_proj and v_proj, TP 1; q_proj, TP 4", K=4096, N=1024, R=16),
        shape("Llama-3-70B q_proj, TP 1", K=8192, N=8192, R=16),
    ),
)
def rms_norm_lora(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    lora_a: Tensor,
    lora_b: Tensor,
    scale: Tensor,
    eps: Tensor,
) -> Tensor:
    """lora_linear(rms_norm(x), weight, lora_a, lora_b, scale)."""
    normed = rms_norm(x, norm_weight, eps, over="K")
    adapted = contract(contract(normed, lora_a, over="K"), lora_b, over="R")
    return contract(normed, weight, over="K") + adapted * scale
