"""activation(gate) * up: what follows the two products of a gated MLP of many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor
from mirage_kernels.generator.recipe import form, options, recipe, shape
from mirage_kernels.recipes.activations import ACTIVATIONS, torch_activation

if TYPE_CHECKING:
    import torch


def reference(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """PyTorch's own unfused program: two kernels, the activation rounded to the input's type."""
    return torch_activation(activation)(gate) * up


@options(
    {f"activation={name}": "" for name in ACTIVATIONS},
    form(
        "silu_and_mul",
        "activation=silu",
        summary="silu(gate) * up",
        shapes=(
            shape("Llama-3-8B, TP 1", N=14336),
            shape("Qwen3-8B, TP 1", N=12288),
            shape("the Mirage paper's gated MLP", N=4096),
            shape("Llama-3.2-1B, TP 1; Llama-3.2-3B, TP 1", N=8192),
            shape("Llama-3.1-8B, TP 4; Llama-3.1-70B, TP 8", N=3584),
            shape("Llama-3.1-8B, TP 8", N=1792),
            shape("Llama-3.1-70B, TP 1", N=28672),
            shape("Llama-3.1-70B, TP 4", N=7168),
            shape("Qwen2.5-7B, TP 1", N=18944),
            shape("Qwen3-32B, TP 1", N=25600),
        ),
    ),
    form(
        "gelu_and_mul",
        "activation=gelu",
        summary="gelu(gate) * up",
        shapes=(shape("ModernBERT-large, TP 1", N=2624),),
    ),
    form(
        "gelu_tanh_and_mul",
        "activation=gelu_tanh",
        summary="gelu_tanh(gate) * up",
        shapes=(
            shape("Gemma-2-9B, TP 1", N=14336),
            shape("Gemma-3-12B, TP 1", N=15360),
        ),
    ),
    form(
        "relu_and_mul",
        "activation=relu",
        summary="relu(gate) * up",
        shapes=(shape("T5-style ReGLU at the Mirage paper's size", N=4096),),
    ),
)
@recipe(
    inputs={"gate": "M N", "up": "M N"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
)
def act_and_mul(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up."""
    return ACTIVATIONS[activation](gate) * up
