"""RMSNorm and linear as Mirage states them: no weight, no eps, W is [K, N]."""

from __future__ import annotations

from mirage_kernels.generator.language import Tensor, contract, mean, sqrt, square
from mirage_kernels.generator.recipe import recipe, shape


@recipe(
    inputs={"x": "M K", "weight": "K N"},
    output="M N",
    dynamic={"M": 64},
    reference=lambda x, weight: x / x.square().mean(-1, keepdim=True).sqrt() @ weight,
    shapes=(shape("the Mirage paper's RMSNorm", K=4096, N=6144),),
)
def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """(x / sqrt(mean(x^2))) @ weight."""
    return contract(x / sqrt(mean(square(x), over="K")), weight, over="K")
