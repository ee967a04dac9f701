"""A linear layer with a bias and a LoRA adapter beside it, unmerged."""

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
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """PyTorch's own unfused program, as PEFT writes it: three matmuls, a scaling and an add."""
    from torch.nn.functional import linear

    return linear(x, weight, bias) + linear(linear(x, lora_a), lora_b) * scale


@recipe(
    inputs={
        "x": "M K",
        "weight": "N K",
        "lora_a": "R K",
        "lora_b": "N R",
        "scale": "",
        "bias": "N",
    },
    output="M N",
    dynamic={"M": 4096},
    scalars={"scale": 2.0},
    optional=("bias",),
    stacked=("lora_a", "lora_b"),
    reference=reference,
    shapes=(
        shape("the Mirage paper's LoRA (no bias)", K=256, N=4096, R=16),
        shape("Llama-3-8B q_proj and o_proj, TP 1 (no bias)", K=4096, N=4096, R=16),
        shape("Llama-3-8B q_proj and o_proj, TP 1 (no bias)", K=4096, N=4096, R=64),
        shape("Qwen2-7B q_proj, TP 1", K=3584, N=3584, R=16),
    ),
)
def lora_linear_full(
    x: Tensor, weight: Tensor, lora_a: Tensor, lora_b: Tensor, scale: Tensor, bias: Tensor
) -> Tensor:
    """linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias."""
    adapted = contract(contract(x, lora_a, over="K"), lora_b, over="R")
    return contract(x, weight, over="K") + adapted * scale + bias
