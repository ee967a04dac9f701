"""gelu_tanh(gate) * up: what follows the two products of Gemma's MLP of many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, gelu_tanh
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: two kernels, the activation rounded to the input's type."""
    from torch.nn.functional import gelu

    return gelu(gate, approximate="tanh") * up


@recipe(
    inputs={"gate": "M N", "up": "M N"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(
        shape("Gemma-2-9B, TP 1", N=14336),
        shape("Gemma-3-12B, TP 1", N=15360),
    ),
)
def gelu_tanh_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up."""
    return gelu_tanh(gate) * up
