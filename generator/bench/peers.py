"""What our kernels are compared with, beside PyTorch eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

R = TypeVar("R")  # a tensor or several


def compiled(eager: Callable[..., R], inputs: tuple[torch.Tensor, ...]) -> Callable[..., R]:
    """Return torch.compile(max-autotune) of `eager`, tuned on these inputs (takes minutes).

    Without its own CUDA graphs: the measurement puts every peer under one graph alike.
    """
    import torch

    torch.compiler.reset()
    tuned: Callable[..., R] = torch.compile(eager, mode="max-autotune-no-cudagraphs", dynamic=False)
    tuned(*inputs)
    return tuned
