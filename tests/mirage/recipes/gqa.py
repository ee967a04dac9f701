"""Attention as Mirage's GQA states it: no scale, no mask, no maximum."""

from __future__ import annotations

from mirage_kernels.generator.language import Tensor, contract, exp, sum
from mirage_kernels.generator.recipe import recipe, shape


@recipe(
    inputs={"q": "H G D", "k": "H D L", "v": "H L D"},
    output="H G D",
    dynamic={},
    reference=lambda q, k, v: (q @ k).softmax(dim=-1) @ v,
    shapes=(shape("the Mirage paper's GQA", H=2, G=256, D=64, L=4096),),
)
def gqa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k) v."""
    weights = exp(contract(q, k, over="D"))
    return contract(weights / sum(weights, over="L"), v, over="L")
