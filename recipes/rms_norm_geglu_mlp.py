"""RMSNorm followed by the gated half of Gemma's MLP (its norm weight is given as 1 + w)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, gelu_tanh, rms_norm
from mirage_kernels.generator.recipe import recipe, shape
from mirage_kernels.recipes.geglu_mlp import reference as unfused_gated_mlp

if TYPE_CHECKING:
    import torch


def reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    gate_weight: torch.Tensor,
    up_weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """PyTorch's own unfused program: the normalised x rounded to the input's type, two matmuls."""
    from torch.nn.functional import rms_norm as torch_rms_norm

    normed = torch_rms_norm(x, (x.shape[-1],), norm_weight, eps)
    return unfused_gated_mlp(normed, gate_weight, up_weight)


@recipe(
    inputs={
        "x": "M K",
        "norm_weight": "K",
        "gate_weight": "N K",
        "up_weight": "N K",
        "eps": "",
    },
    output="M N",
    dynamic={"M": 4096},
    scalars={"eps": 1e-5},
    reference=reference,
    shapes=(
        shape("Gemma-7B, TP 1", K=3072, N=24576),
        shape("Gemma-2B, TP 1", K=2048, N=16384),
        shape("Gemma-2-9B, TP 1", K=3584, N=14336),
    ),
)
def rms_norm_geglu_mlp(
    x: Tensor, norm_weight: Tensor, gate_weight: Tensor, up_weight: Tensor, eps: Tensor
) -> Tensor:
    """gelu_tanh(linear(rms_norm(x), gate_weight)) * linear(rms_norm(x), up_weight)."""
    normed = rms_norm(x, norm_weight, eps, over="K")
    gate = gelu_tanh(contract(normed, gate_weight, over="K"))
    return gate * contract(normed, up_weight, over="K")
