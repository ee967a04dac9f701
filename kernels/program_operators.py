"""Operators of programs beside ATen's: what kernels compute at once, by PyTorch where none does.

A function's own operators are rewritten in these (generator/partition/softmaxes.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

SOFTMAX_BESIDE = "mirage_kernels::softmax_beside"

torch.library.define(SOFTMAX_BESIDE, "(Tensor x, Tensor[] others, int dim) -> Tensor")


@torch.library.impl(SOFTMAX_BESIDE, "CompositeImplicitAutograd")
def softmax_beside(x: Tensor, others: list[Tensor], dim: int) -> Tensor:
    """Return what a softmax along a dim makes of x where it sums the powers of others too."""
    return torch.cat([x, *others], dim).softmax(dim).narrow(dim, 0, x.shape[dim])
