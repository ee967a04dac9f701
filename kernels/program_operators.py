"""Operators of programs beside ATen's: what kernels compute at once, by PyTorch where none does.

A function's own operators are rewritten in these (generator/partition/softmaxes.py,
generator/frontend/conditions.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor


def _compared(compare: Callable[..., Tensor], a: Tensor, b: Tensor | float) -> Tensor:
    """Return 1 where a comparison holds and 0 elsewhere, in the type that both have together."""
    return compare(a, b).to(torch.result_type(a, b))


SOFTMAX_BESIDE = "mirage_kernels::softmax_beside"
MASKED = "mirage_kernels::masked"
COMPARED = {"gt": torch.gt, "ge": torch.ge}

torch.library.define(SOFTMAX_BESIDE, "(Tensor x, Tensor[] others, int dim) -> Tensor")
torch.library.define(MASKED, "(Tensor condition, Tensor x) -> Tensor")
for name, compare in COMPARED.items():
    for overload, second in (("", "Scalar"), (".tensor", "Tensor")):
        own = f"mirage_kernels::{name}{overload}"
        torch.library.define(own, f"(Tensor a, {second} b) -> Tensor")
        torch.library.impl(own, "CompositeImplicitAutograd")(partial(_compared, compare))


@torch.library.impl(SOFTMAX_BESIDE, "CompositeImplicitAutograd")
def softmax_beside(x: Tensor, others: list[Tensor], dim: int) -> Tensor:
    """Return what a softmax along a dim makes of x where it sums the powers of others too."""
    return torch.cat([x, *others], dim).softmax(dim).narrow(dim, 0, x.shape[dim])


@torch.library.impl(MASKED, "CompositeImplicitAutograd")
def masked(condition: Tensor, x: Tensor) -> Tensor:
    """Return x where a condition is not 0, and 0 elsewhere, whatever x is there."""
    return torch.where(condition != 0, x, 0.0)
