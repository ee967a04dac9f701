"""The first half of an MLP without a gate: a projection with a bias through GeLU (erf form)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, gelu
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: the matmul's result rounded to the input's type, then GeLU."""
    from torch.nn.functional import gelu as torch_gelu
    from torch.nn.functional import linear

    return torch_gelu(linear(x, weight, bias))


@recipe(
    inputs={"x": "M K", "weight": "N K", "bias": "N"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(
        shape("Pythia-6.9B, TP 1", K=4096, N=16384),
        shape("Pythia-12B, TP 1", K=5120, N=20480),
        shape("BERT-large and ViT-L", K=1024, N=4096),
        shape("Falcon-7B, TP 1 (bias is 0)", K=4544, N=18176),
    ),
)
def gelu_mlp(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """gelu(linear(x, weight) + bias)."""
    return gelu(contract(x, weight, over="K") + bias)
