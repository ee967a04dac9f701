"""The first half of an MLP without a gate: a projection through ReLU^2 (Primer, Nemotron)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, relu, square
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: the matmul's result rounded to the input's type, then relu."""
    from torch.nn.functional import linear
    from torch.nn.functional import relu as torch_relu

    return torch_relu(linear(x, weight)).square()


@recipe(
    inputs={"x": "M K", "weight": "N K"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(
        shape("Minitron-8B, TP 1", K=4096, N=16384),
        shape("Minitron-4B, TP 1", K=3072, N=9216),
        shape("Nemotron-4-15B, TP 1", K=6144, N=24576),
        shape("Nemotron-4-15B, TP 4", K=6144, N=6144),
    ),
)
def relu2_mlp(x: Tensor, weight: Tensor) -> Tensor:
    """relu(linear(x, weight))^2."""
    return square(relu(contract(x, weight, over="K")))
