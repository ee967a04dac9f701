"""RMSNorm followed by a linear layer: the input projection of every pre-norm transformer block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, rms_norm
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor, norm_weight: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """PyTorch's own unfused program: two kernels, the normalised x rounded to the input's type."""
    from torch.nn.functional import linear
    from torch.nn.functional import rms_norm as torch_rms_norm

    return linear(torch_rms_norm(x, (x.shape[-1],), norm_weight, eps), weight)


@recipe(
    inputs={"x": "M K", "norm_weight": "K", "weight": "N K", "eps": ""},
    output="M N",
    dynamic={"M": 4096},
    scalars={"eps": 1e-6},
    reference=reference,
    shapes=(
        shape("Llama-3-8B qkv_proj, TP 1; also the Mirage paper's RMSNorm", K=4096, N=6144),
        shape("Llama-3-8B q_proj, TP 1; Chameleon-7B q_proj", K=4096, N=4096),
        shape("Llama-3-70B qkv_proj, TP 1", K=8192, N=10240),
    ),
)
def rms_norm_linear(x: Tensor, norm_weight: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """linear(x / sqrt(mean(x^2) + eps) * norm_weight, weight)."""
    return contract(rms_norm(x, norm_weight, eps, over="K"), weight, over="K")
