"""RMSNorm and a linear layer of x + residual, and the sum itself, the next layer's residual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, rms_norm
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own unfused program: three kernels, the sum rounded to the input's type."""
    from torch.nn.functional import linear
    from torch.nn.functional import rms_norm as torch_rms_norm

    total = x + residual
    scale = norm_weight + weight_offset if weight_offset else norm_weight
    return linear(torch_rms_norm(total, (x.shape[-1],), scale, eps), weight, bias), total


@recipe(
    inputs={
        "x": "M K",
        "norm_weight": "K",
        "weight": "N K",
        "eps": "",
        "bias": "N",
        "residual": "M K",
        "weight_offset": "",
    },
    output="M N",
    also={"total": "M K"},
    dynamic={"M": 4096},
    scalars={"eps": 1e-6, "weight_offset": 1.0},
    optional=("bias", "weight_offset"),
    reference=reference,
    shapes=(
        shape("Qwen2-7B qkv_proj, TP 1 (weight_offset is 0)", K=3584, N=4608),
        shape("Llama-3-8B qkv_proj, TP 1 (no bias, weight_offset is 0)", K=4096, N=6144),
    ),
)
def rms_norm_linear_residual(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: Tensor,
    bias: Tensor,
    residual: Tensor,
    weight_offset: Tensor,
) -> tuple[Tensor, Tensor]:
    """linear(rms_norm(total, norm_weight + weight_offset), weight) + bias; total = x + residual."""
    total = x + residual
    normed = rms_norm(total, norm_weight + weight_offset, eps, over="K")
    return contract(normed, weight, over="K") + bias, total
