"""A linear layer, with a bias or not, added to a residual or not.

These are the output projections of attention and of the MLP in every transformer block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract
from mirage_kernels.generator.recipe import form, options, recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """PyTorch's own unfused program: the matmul's result rounded to the input's type first."""
    from torch.nn.functional import linear

    projected = linear(x, weight, bias)
    return projected if residual is None else residual + projected


@options(
    {"bias": "", "residual": ""},
    form(
        "linear",
        "bias",
        "residual",
        summary="residual + linear(x, weight) + bias",
        shapes=(
            shape("Llama-3.1-8B, Mistral-7B and Qwen3-8B o_proj, TP 1", K=4096, N=4096),
            shape("Llama-3.1-8B and Mistral-7B down_proj, TP 1", K=14336, N=4096),
            shape("Qwen3-8B down_proj, TP 1", K=12288, N=4096),
            shape("Llama-3.2-1B o_proj, TP 1", K=2048, N=2048),
            shape("Llama-3.2-1B down_proj, TP 1", K=8192, N=2048),
            shape("Llama-3.2-3B o_proj, TP 1", K=3072, N=3072),
            shape("Llama-3.2-3B down_proj, TP 1", K=8192, N=3072),
            shape("Qwen2.5-7B o_proj, TP 1", K=3584, N=3584),
            shape("Qwen2.5-7B down_proj, TP 1", K=18944, N=3584),
            shape("Qwen3-32B o_proj, TP 1", K=8192, N=5120),
            shape("Qwen3-32B down_proj, TP 1", K=25600, N=5120),
            shape("Gemma-2-9B o_proj, TP 1", K=4096, N=3584),
            shape("Gemma-2-9B down_proj, TP 1", K=14336, N=3584),
            shape("Gemma-3-12B o_proj, TP 1", K=4096, N=3840),
            shape("Gemma-3-12B down_proj, TP 1", K=15360, N=3840),
            shape("Llama-3-70B o_proj, TP 1", K=8192, N=8192),
            shape("Llama-3-70B down_proj, TP 1", K=28672, N=8192),
            shape("Llama-3-70B o_proj, TP 4", K=2048, N=8192),
            shape("Llama-3-70B down_proj, TP 4", K=7168, N=8192),
            shape("Llama-3-70B o_proj, TP 8", K=1024, N=8192),
            shape("Llama-3-70B down_proj, TP 8", K=3584, N=8192),
        ),
    ),
)
@recipe(
    inputs={"x": "M K", "weight": "N K", "bias": "N", "residual": "M N"},
    output="M N",
    dynamic={"M": 4096},
    optional=("bias", "residual"),
    reference=reference,
)
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None
) -> Tensor:
    """residual + linear(x, weight) + bias."""
    product = contract(x, weight, over="K")
    projected = product if bias is None else product + bias
    return projected if residual is None else residual + projected
