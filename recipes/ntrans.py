"""The residual step of nGPT: hidden states move along the unit sphere towards a block's output.

Mirage's benchmark of it has RMSNorm in place of the unit length and a sum in place of the
difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.language import Tensor, l2_norm, mean, sqrt, square
from mirage_kernels.generator.recipe import recipe, shape

if TYPE_CHECKING:
    import torch


def reference(h: torch.Tensor, x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: a kernel per norm, quotient, difference, product and sum."""
    from torch.nn.functional import normalize

    return normalize(h + alpha * (normalize(x, dim=-1) - h), dim=-1)


@recipe(
    inputs={"h": "M K", "x": "M K", "alpha": "K"},
    output="M K",
    dynamic={"M": 4096},
    reference=reference,
    shapes=(
        shape("the Mirage paper's nTrans (its alpha is per token too)", K=4096),
        shape("nGPT-0.5B", K=1024),
        shape("nGPT-1B", K=1280),
    ),
)
def ntrans(h: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """norm(h + alpha * (norm(x) - h)), where norm(x) = x / sqrt(sum(x^2))."""
    return l2_norm(h + alpha * (l2_norm(x, over="K") - h), over="K")


def mirage_reference(h: torch.Tensor, x: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """PyTorch's own unfused program: two norms, two sums and a product; a rate for each element."""
    from torch.nn.functional import rms_norm

    extents = (h.shape[-1],)
    return rms_norm(h + rate * (rms_norm(x, extents, eps=0.0) + h), extents, eps=0.0)


@recipe(
    inputs={"h": "M K", "x": "M K", "rate": "M K"},
    output="M K",
    dynamic={"M": 4096},
    reference=mirage_reference,
    shapes=(shape("the nTrans of Mirage's benchmark", K=4096),),
)
def mirage_ntrans(h: Tensor, x: Tensor, rate: Tensor) -> Tensor:
    """norm(h + rate * (norm(x) + h)), where norm(x) = x / sqrt(mean(x^2))."""

    def norm(y: Tensor) -> Tensor:
        return y / sqrt(mean(square(y), over="K"))

    return norm(h + rate * (norm(x) + h))
