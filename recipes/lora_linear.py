"""A linear layer with a LoRA adapter beside it, unmerged: adapters may change per request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    lora_a: torch.Tensor,
    lora_b: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """PyTorch's own unfused program, as PEFT writes it: three matmuls, a scaling and an add."""
    from torch.nn.functional import linear

    return linear(x, weight) + linear(linear(x, lora_a), lora_b) * scale


@recipe(
    inputs={"x": "M K", "weight": "N K", "lora_a": "R K", "lora_b": "N R", "scale": ""},
    output="M N",
    dynamic={"M": 4096},
    scalars={"scale": 2.0},
    reference=reference,
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
)
def lora_linear(x: Tensor, weight: Tensor, lora_a: Tensor, lora_b: Tensor, scale: Tensor) -> Tensor:
    """linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)."""
    adapted = contract(contract(x, lora_a, over="K"), lora_b, over="R")
    return contract(x, weight, over="K") + adapted * scale
