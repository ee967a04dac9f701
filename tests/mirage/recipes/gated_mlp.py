"""The gated MLP as Mirage states it: both weights are [K, N]."""

from __future__ import annotations

from mirage_kernels.generator.language import Tensor, contract, silu
from mirage_kernels.generator.recipe import recipe, shape


@recipe(
    inputs={"x": "M K", "gate_weight": "K N", "up_weight": "K N"},
    output="M N",
    dynamic={"M": 64},
    reference=None,
    shapes=(shape("the Mirage paper's gated MLP", K=4096, N=4096),),
)
def gated_mlp(x: Tensor, gate_weight: Tensor, up_weight: Tensor) -> Tensor:
    """silu(x @ gate_weight) * (x @ up_weight)."""
    return silu(contract(x, gate_weight, over="K")) * contract(x, up_weight, over="K")
