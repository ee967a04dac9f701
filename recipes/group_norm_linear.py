"""GroupNorm of each token's heads followed by a linear layer: the output projection of RWKV.

The K = G C features of a token are G groups of C, normalised each on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, group_norm
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """PyTorch's own unfused program: two kernels, the normalised x rounded to the input's type."""
    from torch.nn.functional import group_norm as torch_group_norm
    from torch.nn.functional import linear

    groups, affine = x.shape[1], (norm_weight.flatten(), norm_bias.flatten())
    return linear(torch_group_norm(x.flatten(1), groups, *affine, eps), weight.flatten(1))


@recipe(
    inputs={
        "x": "M G C",
        "norm_weight": "G C",
        "norm_bias": "G C",
        "weight": "N G C",
        "eps": "",
    },
    output="M N",
    dynamic={"M": 4096},
    scalars={"eps": 64e-5},
    reference=reference,
    shapes=(
        shape("RWKV-6-7B, TP 1", G=64, C=64, N=4096),
        shape("RWKV-6-3B, TP 1", G=40, C=64, N=2560),
        shape("RWKV-6-1.6B, TP 1", G=32, C=64, N=2048),
    ),
)
def group_norm_linear(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, eps: Tensor
) -> Tensor:
    """linear(group_norm(x, eps) * norm_weight + norm_bias, weight)."""
    normed = group_norm(x, eps, over="C") * norm_weight + norm_bias
    return contract(normed, weight, over="C G")
