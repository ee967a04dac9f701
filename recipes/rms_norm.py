"""RMSNorm alone, as it stands in front of a matrix product of many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator import language
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.language import Tensor


def reference(
    x: torch.Tensor, norm_weight: torch.Tensor, eps: float, weight_offset: float = 0.0
) -> torch.Tensor:
    """PyTorch's own program: its kernel, with an offset after one that adds it to the weights."""
    from torch.nn.functional import rms_norm as torch_rms_norm

    scale = norm_weight + weight_offset if weight_offset else norm_weight
    return torch_rms_norm(x, (x.shape[-1],), scale, eps)


@recipe(
    inputs={"x": "M K", "norm_weight": "K", "eps": "", "weight_offset": ""},
    output="M K",
    dynamic={"M": 4096},
    scalars={"eps": 1e-6, "weight_offset": 1.0},
    optional=("weight_offset",),
    reference=reference,
    shapes=(
        shape("Llama-3-8B, Qwen3-8B (weight_offset is 0)", K=4096),
        shape("Llama-3-70B (weight_offset is 0)", K=8192),
        shape("Gemma-2-9B (weight_offset is 1), Qwen2-7B (0)", K=3584),
    ),
)
def rms_norm(x: Tensor, norm_weight: Tensor, eps: Tensor, weight_offset: Tensor) -> Tensor:
    """rms_norm(x) * (norm_weight + weight_offset)."""
    return language.rms_norm(x, norm_weight + weight_offset, eps, over="K")
