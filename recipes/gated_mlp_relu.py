"""The gated half of an MLP whose gate goes through ReLU (ReGLU), as in ReluLLaMA and ProSparse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, relu
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: two matmuls, both results rounded to the input's type."""
    from torch.nn.functional import linear
    from torch.nn.functional import relu as torch_relu

    return torch_relu(linear(x, gate_weight)) * linear(x, up_weight)


@recipe(
    inputs={"x": "M K", "gate_weight": "N K", "up_weight": "N K"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(
        shape("the Mirage paper's gated MLP with this gate", K=4096, N=4096),
        shape("ReluLLaMA-7B, TP 1", K=4096, N=11008),
        shape("Llama-3-8B's shape with this gate, TP 1", K=4096, N=14336),
    ),
)
def gated_mlp_relu(x: Tensor, gate_weight: Tensor, up_weight: Tensor) -> Tensor:
    """relu(linear(x, gate_weight)) * linear(x, up_weight)."""
    return relu(contract(x, gate_weight, over="K")) * contract(x, up_weight, over="K")
