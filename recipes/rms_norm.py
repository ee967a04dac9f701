"""RMSNorm alone, as it stands in front of a matrix product of many tokens.

With a residual it norms x + residual and also returns the sum, the next layer's residual. With an
addend it norms x alone and adds it to that: the norm behind a block, as Gemma 2 and 3 have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator import language
from mirage_kernels.generator.language import Tensor
from mirage_kernels.generator.recipe import form, options, recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own program: its kernel, after those that add an offset or a residual."""
    from torch.nn.functional import rms_norm as torch_rms_norm

    total = x if residual is None else x + residual
    scale = norm_weight + weight_offset if weight_offset else norm_weight
    normed = torch_rms_norm(total, (x.shape[-1],), scale, eps)
    if addend is not None:
        normed = addend + normed
    return normed if residual is None else (normed, total)


@options(
    {"residual": "total", "addend": ""},
    form(
        "rms_norm",
        summary="rms_norm(x) * (norm_weight + weight_offset)",
        shapes=(
            shape("Llama-3-8B, Qwen3-8B (weight_offset is 0)", K=4096),
            shape("Llama-3-70B (weight_offset is 0)", K=8192),
            shape("Gemma-2-9B (weight_offset is 1), Qwen2-7B (0)", K=3584),
            shape("Llama-3.2-1B (weight_offset is 0)", K=2048),
            shape("Llama-3.2-3B (weight_offset is 0)", K=3072),
            shape("Qwen3-32B (weight_offset is 0)", K=5120),
            shape("Gemma-3-12B (weight_offset is 1)", K=3840),
        ),
    ),
    form(
        "rms_norm_residual",
        "residual",
        summary="rms_norm(total) * (norm_weight + weight_offset); total = x + residual",
        shapes=(
            shape("Llama-3-8B, Qwen3-8B (weight_offset is 0)", K=4096),
            shape("Llama-3-70B (weight_offset is 0)", K=8192),
            shape("Qwen2-7B (weight_offset is 0)", K=3584),
        ),
    ),
    form(
        "rms_norm_add",
        "addend",
        summary="addend + rms_norm(x) * (norm_weight + weight_offset)",
        shapes=(
            shape("Gemma-2-9B behind attention and MLP (weight_offset is 1)", K=3584),
            shape("Gemma-3-12B behind attention and MLP (weight_offset is 1)", K=3840),
        ),
    ),
)
@recipe(
    inputs={
        "x": "M K",
        "norm_weight": "K",
        "eps": "",
        "residual": "M K",
        "addend": "M K",
        "weight_offset": "",
    },
    output="M K",
    also={"total": "M K"},
    dynamic={"M": 4096},
    scalars={"eps": 1e-6, "weight_offset": 1.0},
    optional=("weight_offset",),
    reference=reference,
)
def rms_norm(
    x: Tensor,
    norm_weight: Tensor,
    eps: Tensor,
    residual: Tensor | None = None,
    addend: Tensor | None = None,
    *,
    weight_offset: Tensor,
) -> Tensor | tuple[Tensor, Tensor]:
    """addend + rms_norm(x + residual) * (norm_weight + weight_offset)."""
    total = x if residual is None else x + residual
    normed = language.rms_norm(total, norm_weight + weight_offset, eps, over="K")
    if addend is not None:
        normed = addend + normed
    return normed if residual is None else (normed, total)
