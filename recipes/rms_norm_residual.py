"""RMSNorm of x + residual, and the sum itself, the next layer's residual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator import language
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.language import Tensor


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own unfused program: two kernels, the sum rounded to the input's type."""
    from torch.nn.functional import rms_norm as torch_rms_norm

    total = x + residual
    scale = norm_weight + weight_offset if weight_offset else norm_weight
    return torch_rms_norm(total, (x.shape[-1],), scale, eps), total


@recipe(
    inputs={"x": "M K", "norm_weight": "K", "eps": "", "residual": "M K", "weight_offset": ""},
    output="M K",
    also={"total": "M K"},
    dynamic={"M": 4096},
    scalars={"eps": 1e-6, "weight_offset": 1.0},
    optional=("weight_offset",),
    reference=reference,
    shapes=(
        shape("Llama-3-8B, Qwen3-8B (weight_offset is 0)", K=4096),
        shape("Llama-3-70B (weight_offset is 0)", K=8192),
        shape("Qwen2-7B (weight_offset is 0)", K=3584),
    ),
)
def rms_norm_residual(
    x: Tensor, norm_weight: Tensor, eps: Tensor, residual: Tensor, weight_offset: Tensor
) -> tuple[Tensor, Tensor]:
    """rms_norm(total) * (norm_weight + weight_offset); total = x + residual."""
    total = x + residual
    return language.rms_norm(total, norm_weight + weight_offset, eps, over="K"), total
