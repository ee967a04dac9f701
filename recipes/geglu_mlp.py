"""The gated half of Gemma's MLP: two projections of x, one through GeLU (tanh form), multiplied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, gelu_tanh
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: two matmuls, both results rounded to the input's type."""
    from torch.nn.functional import gelu, linear

    return gelu(linear(x, gate_weight), approximate="tanh") * linear(x, up_weight)


@recipe(
    inputs={"x": "M K", "gate_weight": "N K", "up_weight": "N K"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(
        shape("Gemma-7B, TP 1", K=3072, N=24576),
        shape("Gemma-2B, TP 1", K=2048, N=16384),
        shape("Gemma-2-9B, TP 1", K=3584, N=14336),
        shape("Gemma-2-27B, TP 1", K=4608, N=36864),
        shape("Gemma-3-12B, TP 1", K=3840, N=15360),
    ),
)
def geglu_mlp(x: Tensor, gate_weight: Tensor, up_weight: Tensor) -> Tensor:
    """gelu_tanh(linear(x, gate_weight)) * linear(x, up_weight)."""
    gate = gelu_tanh(contract(x, gate_weight, over="K"))
    return gate * contract(x, up_weight, over="K")
