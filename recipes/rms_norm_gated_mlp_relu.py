"""RMSNorm followed by the gated half of an MLP whose gate goes through ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, relu, rms_norm
from mirage_kernels.generator.recipe import recipe, shape
from mirage_kernels.recipes.gated_mlp_relu import reference as unfused_gated_mlp

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
        shape("ReluLLaMA-7B, TP 1", K=4096, N=11008),
        shape("Llama-3-8B's shape with this gate, TP 1", K=4096, N=14336),
    ),
)
def rms_norm_gated_mlp_relu(
    x: Tensor, norm_weight: Tensor, gate_weight: Tensor, up_weight: Tensor, eps: Tensor
) -> Tensor:
    """relu(linear(rms_norm(x), gate_weight)) * linear(rms_norm(x), up_weight)."""
    normed = rms_norm(x, norm_weight, eps, over="K")
    gate = relu(contract(normed, gate_weight, over="K"))
    return gate * contract(normed, up_weight, over="K")
