"""LoRA as Mirage states it: no scale, weights are [in, out]."""

from __future__ import annotations

from mirage_kernels.generator.language import Tensor, contract
from mirage_kernels.generator.recipe import recipe, shape


@recipe(
    inputs={"x": "M K", "weight": "K N", "lora_a": "K R", "lora_b": "R N"},
    output="M N",
    dynamic={"M": 64},
    reference=None,
    shapes=(shape("the Mirage paper's LoRA", K=256, N=4096, R=16),),
)
def lora(x: Tensor, weight: Tensor, lora_a: Tensor, lora_b: Tensor) -> Tensor:
    """x @ weight + (x @ lora_a) @ lora_b."""
    adapted = contract(contract(x, lora_a, over="K"), lora_b, over="R")
    return contract(x, weight, over="K") + adapted
