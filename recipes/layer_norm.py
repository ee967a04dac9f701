"""LayerNorm alone, as it stands in front of a matrix product of more than a few tokens.

With a residual it norms x + residual and also returns the sum, the next layer's residual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator import language
from mirage_kernels.generator.recipe import form, options, recipe, shape

if TYPE_CHECKING:
    import torch

    from mirage_kernels.generator.language import Tensor


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own kernel, after the one that adds a residual."""
    from torch.nn.functional import layer_norm as torch_layer_norm

    total = x if residual is None else x + residual
    normed = torch_layer_norm(total, (x.shape[-1],), norm_weight, norm_bias, eps)
    return normed if residual is None else (normed, total)


@options(
    {"residual": "total"},
    form(
        "layer_norm",
        summary="layer_norm(x, eps) * norm_weight + norm_bias",
        shapes=(
            shape("OPT-6.7B, MPT-7B, GPT-J-6B, Command R7B", K=4096),
            shape("GPT-2 XL", K=1600),
            shape("Falcon-7B", K=4544),
        ),
    ),
    form(
        "layer_norm_residual",
        "residual",
        summary="layer_norm(total, eps) * norm_weight + norm_bias; total = x + residual",
        shapes=(shape("OPT-6.7B", K=4096), shape("GPT-2 XL", K=1600)),
    ),
)
@recipe(
    inputs={"x": "M K", "norm_weight": "K", "norm_bias": "K", "eps": "", "residual": "M K"},
    output="M K",
    also={"total": "M K"},
    dynamic={"M": 4096},
    scalars={"eps": 1e-5},
    optional=("norm_bias",),
    reference=reference,
)
def layer_norm(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    eps: Tensor,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """layer_norm(x + residual, eps) * norm_weight + norm_bias."""
    total = x if residual is None else x + residual
    normed = language.layer_norm(total, eps, over="K") * norm_weight + norm_bias
    return normed if residual is None else (normed, total)
