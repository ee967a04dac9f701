"""What our kernels are compared with, beside PyTorch eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def compiled(
    eager: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]
) -> Callable[..., torch.Tensor]:
    """Return torch.compile(max-autotune) of `eager`, tuned on these inputs (takes minutes).

    Without its own CUDA graphs: the measurement puts every peer under one graph alike.
    """
    import torch

    torch.compiler.reset()
    tuned: Callable[..., torch.Tensor] = torch.compile(
        eager, mode="max-autotune-no-cudagraphs", dynamic=False
    )
    tuned(*inputs)
    return tuned
