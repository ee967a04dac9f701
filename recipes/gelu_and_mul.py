"""gelu(gate) * up with the exact GeLU: what follows the two products of ModernBERT's MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, gelu
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: two kernels, the activation rounded to the input's type."""
    from torch.nn.functional import gelu as torch_gelu

    return torch_gelu(gate) * up


@recipe(
    inputs={"gate": "M N", "up": "M N"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(shape("ModernBERT-large, TP 1", N=2624),),
)
def gelu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up."""
    return gelu(gate) * up
