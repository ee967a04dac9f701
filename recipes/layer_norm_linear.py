"""LayerNorm followed by a linear layer, with a bias as in GPT-2 and OPT or without as in Falcon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, layer_norm
from mirage_kernels.generator.recipe import form, options, recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """PyTorch's own unfused program: two kernels, the normalised x rounded to the input's type."""
    from torch.nn.functional import layer_norm as torch_layer_norm
    from torch.nn.functional import linear

    normed = torch_layer_norm(x, (x.shape[-1],), norm_weight, norm_bias, eps)
    return linear(normed, weight, bias)


@options(
    {"bias": ""},
    form(
        "layer_norm_linear",
        summary="linear(layer_norm(x, eps) * norm_weight + norm_bias, weight)",
        optional=(),
        shapes=(
            shape("MPT-7B qkv_proj, TP 1 (norm_bias is 0)", K=4096, N=12288),
            shape("Falcon-7B qkv_proj, TP 1", K=4544, N=4672),
            shape("Falcon-40B qkv_proj, TP 1", K=8192, N=9216),
            shape("Falcon-40B qkv_proj, TP 4", K=8192, N=2304),
            shape("GPT-J-6B q_proj, TP 1", K=4096, N=4096),
            shape("Command R7B qkv_proj, TP 1 (norm_bias is 0)", K=4096, N=6144),
        ),
    ),
    form(
        "layer_norm_linear_full",
        "bias",
        summary="linear(layer_norm(x, eps) * norm_weight + norm_bias, weight) + bias",
        shapes=(
            shape("OPT-6.7B qkv_proj, TP 1; MPT-7B's has no biases", K=4096, N=12288),
            shape("GPT-2 XL c_attn, TP 1", K=1600, N=4800),
            shape("Falcon-7B qkv_proj, TP 1 (no bias)", K=4544, N=4672),
            shape("GPT-J-6B q_proj, TP 1 (no bias)", K=4096, N=4096),
            shape("Command R7B qkv_proj, TP 1 (no biases)", K=4096, N=6144),
        ),
    ),
)
@recipe(
    inputs={
        "x": "M K",
        "norm_weight": "K",
        "norm_bias": "K",
        "weight": "N K",
        "eps": "",
        "bias": "N",
    },
    output="M N",
    dynamic={"M": 4096},
    scalars={"eps": 1e-5},
    optional=("norm_bias", "bias"),
    reference=reference,
)
def layer_norm_linear(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    eps: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """linear(layer_norm(x, eps) * norm_weight + norm_bias, weight) + bias."""
    normed = layer_norm(x, eps, over="K") * norm_weight + norm_bias
    product = contract(normed, weight, over="K")
    return product if bias is None else product + bias
