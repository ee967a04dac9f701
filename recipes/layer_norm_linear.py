"""LayerNorm followed by a linear layer without a bias, as in Falcon and MPT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, layer_norm
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
    from torch.nn.functional import layer_norm as torch_layer_norm
    from torch.nn.functional import linear

    return linear(torch_layer_norm(x, (x.shape[-1],), norm_weight, norm_bias, eps), weight)


@recipe(
    inputs={"x": "M K", "norm_weight": "K", "norm_bias": "K", "weight": "N K", "eps": ""},
    output="M N",
    dynamic={"M": 4096},
    scalars={"eps": 1e-5},
    reference=reference,
    shapes=(
        shape("MPT-7B qkv_proj, TP 1 (norm_bias is 0)", K=4096, N=12288),
        shape("Falcon-7B qkv_proj, TP 1", K=4544, N=4672),
        shape("Falcon-40B qkv_proj, TP 1", K=8192, N=9216),
        shape("Falcon-40B qkv_proj, TP 4", K=8192, N=2304),
        shape("GPT-J-6B q_proj, TP 1", K=4096, N=4096),
        shape("Command R7B qkv_proj, TP 1 (norm_bias is 0)", K=4096, N=6144),
    ),
)
def layer_norm_linear(
    x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, eps: Tensor
) -> Tensor:
    """linear(layer_norm(x, eps) * norm_weight + norm_bias, weight)."""
    normed = layer_norm(x, eps, over="K") * norm_weight + norm_bias
    return contract(normed, weight, over="K")
