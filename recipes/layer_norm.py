"""LayerNorm alone, as it stands in front of a matrix product of more than a few tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator import language
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.language import Tensor


def reference(
    x: torch.Tensor, norm_weight: torch.Tensor, norm_bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """PyTorch's own kernel."""
    from torch.nn.functional import layer_norm as torch_layer_norm

    return torch_layer_norm(x, (x.shape[-1],), norm_weight, norm_bias, eps)


@recipe(
    inputs={"x": "M K", "norm_weight": "K", "norm_bias": "K", "eps": ""},
    output="M K",
    dynamic={"M": 4096},
    scalars={"eps": 1e-5},
    optional=("norm_bias",),
    reference=reference,
    shapes=(
        shape("OPT-6.7B, MPT-7B, GPT-J-6B, Command R7B", K=4096),
        shape("GPT-2 XL", K=1600),
        shape("Falcon-7B", K=4544),
    ),
)
def layer_norm(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, eps: Tensor) -> Tensor:
    """layer_norm(x, eps) * norm_weight + norm_bias."""
    return language.layer_norm(x, eps, over="K") * norm_weight + norm_bias
