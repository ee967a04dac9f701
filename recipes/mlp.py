"""The first half of an MLP without a gate: a projection, with a bias or not, then an activation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract
from mirage_kernels.generator.recipe import form, options, recipe, shape
from mirage_kernels.recipes.activations import ACTIVATIONS, torch_activation

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str = "gelu",
) -> torch.Tensor:
    """PyTorch's own unfused program: the matmul's result rounded to the input's type first."""
    from torch.nn.functional import linear

    return torch_activation(activation)(linear(x, weight, bias))


@options(
    {"bias": "", "activation=gelu": "", "activation=gelu_tanh": "", "activation=relu2": ""},
    form(
        "gelu_mlp",
        "bias",
        "activation=gelu",
        summary="gelu(linear(x, weight) + bias)",
        shapes=(
            shape("Pythia-6.9B, TP 1", K=4096, N=16384),
            shape("Pythia-12B, TP 1", K=5120, N=20480),
            shape("BERT-large and ViT-L", K=1024, N=4096),
            shape("Falcon-7B, TP 1 (bias is 0)", K=4544, N=18176),
        ),
    ),
    form(
        "gelu_tanh_mlp",
        "bias",
        "activation=gelu_tanh",
        summary="gelu_tanh(linear(x, weight) + bias)",
        shapes=(
            shape("GPT-2", K=768, N=3072),
            shape("GPT-2-XL", K=1600, N=6400),
            shape("Phi-2, TP 1", K=2560, N=10240),
            shape("StarCoder2-15B, TP 1", K=6144, N=24576),
        ),
    ),
    form(
        "relu2_mlp",
        "activation=relu2",
        summary="relu(linear(x, weight))^2",
        shapes=(
            shape("Minitron-8B, TP 1", K=4096, N=16384),
            shape("Minitron-4B, TP 1", K=3072, N=9216),
            shape("Nemotron-4-15B, TP 1", K=6144, N=24576),
            shape("Nemotron-4-15B, TP 4", K=6144, N=6144),
        ),
    ),
)
@recipe(
    inputs={"x": "M K", "weight": "N K", "bias": "N"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
)
def mlp(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str) -> Tensor:
    """activation(linear(x, weight) + bias)."""
    product = contract(x, weight, over="K")
    return ACTIVATIONS[activation](product if bias is None else product + bias)
