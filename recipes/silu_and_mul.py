"""silu(gate) * up: what follows the two products of a gated MLP of many tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, silu
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: two kernels, the activation rounded to the input's type."""
    from torch.nn.functional import silu as torch_silu

    return torch_silu(gate) * up


@recipe(
    inputs={"gate": "M N", "up": "M N"},
    output="M N",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(
        shape("Llama-3-8B, TP 1", N=14336),
        shape("Qwen3-8B, TP 1", N=12288),
        shape("the Mirage paper's gated MLP", N=4096),
    ),
)
def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return silu(gate) * up
