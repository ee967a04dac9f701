"""The gated half of a transformer's MLP: two projections of x, one through silu, multiplied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, contract, silu
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(x: torch.Tensor, gate_weight: torch.Tensor, up_weight: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: two matmuls, both results rounded to the input's type."""
    from torch.nn.functional import linear
    from torch.nn.functional import silu as torch_silu

    return torch_silu(linear(x, gate_weight)) * linear(x, up_weight)


@recipe(
    inputs={"x": "M K", "gate_weight": "N K", "up_weight": "N K"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(
        shape("the Mirage paper's gated MLP", K=4096, N=4096),
        shape("Llama-3-8B, TP 1", K=4096, N=14336),
        shape("Llama-3-8B, TP 4", K=4096, N=3584),
        shape("Llama-3-8B, TP 8", K=4096, N=1792),
        shape("Llama-3-70B, TP 1", K=8192, N=28672),
        shape("Llama-3-70B, TP 4", K=8192, N=7168),
        shape("Llama-3-70B, TP 8", K=8192, N=3584),
        shape("Qwen3-8B, TP 1", K=4096, N=12288),
        shape("Qwen3-32B, TP 1", K=5120, N=25600),
        shape("Chameleon-7B, TP 1", K=4096, N=11008),
    ),
)
def gated_mlp(x: Tensor, gate_weight: Tensor, up_weight: Tensor) -> Tensor:
    """silu(linear(x, gate_weight)) * linear(x, up_weight)."""
    return silu(contract(x, gate_weight, over="K")) * contract(x, up_weight, over="K")
