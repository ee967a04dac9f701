"""relu(gate) * up: what follows the two products of a ReGLU MLP of many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, relu
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: two kernels, the activation rounded to the input's type."""
    from torch.nn.functional import relu as torch_relu

    return torch_relu(gate) * up


@recipe(
    inputs={"gate": "M N", "up": "M N"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(shape("T5-style ReGLU at the Mirage paper's size", N=4096),),
)
def relu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """relu(gate) * up."""
    return relu(gate) * up
