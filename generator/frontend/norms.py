"""ATen's norms as steps of positional programs, with the parameters of the ATen operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.program import Tensor
from mirage_kernels.generator.frontend.steps import Operand, Steps

EPS_OF_FP32 = 2.0**-23


def _per_channel(s: Steps, x: Tensor, value: Tensor) -> Tensor:
    """Return a value of every channel, dim 1 of x, so that it broadcasts."""
    return s.reshape(value, (1, value.dims[0], *(1,) * (x.num_dims - 2)))


def affine(s: Steps, x: Tensor, weight: Operand | None, bias: Operand | None) -> Tensor:
    """Return x * weight + bias."""
    made = x if weight is None else s("mul", x, weight)
    return made if bias is None else s("add", made, bias)


def _of_channels(s: Steps, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return x * weight + bias, of which there is one of every channel."""
    return affine(s, x, *(None if v is None else _per_channel(s, x, v) for v in (weight, bias)))


def layer_norm(
    s: Steps,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Normalise over the last dims, as many as `shape` has."""
    made = s.normalized(x, range(x.num_dims - len(shape), x.num_dims), eps)
    return affine(s, made, weight, bias)


def rms_norm(
    s: Steps,
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Divide by the root of the mean square over the last dims.

    PyTorch's eps, where it has none, is that of fp32: it computes in that type.
    """
    eps = EPS_OF_FP32 if eps is None else eps
    dims = range(x.num_dims - len(shape), x.num_dims)
    mean = s.reduce("mean", s("square", x), dims)
    return affine(s, s("div", x, s("sqrt", s("add", mean, eps))), weight, None)


def group_norm(
    s: Steps,
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Normalise every group of the channels, which are dim 1."""
    split = (x.dims[0], groups, x.dims[1] // groups, *x.dims[2:])
    made = s.normalized(s.reshape(x, split), range(2, len(split)), eps)
    if weight is not None or bias is not None:
        of_group = (1, groups, split[2], *(1,) * (len(split) - 3))
        given = [None if v is None else s.reshape(v, of_group) for v in (weight, bias)]
        made = affine(s, made, *given)
    return s.reshape(made, x.dims)


def batch_norm(
    s: Steps,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Normalise every channel, by statistics of the batch or by those that are given."""
    dims = [0, *range(2, x.num_dims)]
    if training or mean is None or variance is None:
        made = s.normalized(x, dims, eps)
    else:
        root = s("sqrt", s("add", _per_channel(s, x, variance), eps))
        made = s("div", s("sub", x, _per_channel(s, x, mean)), root)
    return _of_channels(s, made, weight, bias)


def instance_norm(
    s: Steps,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Normalise every channel of every instance."""
    if not use_input_stats:
        return batch_norm(s, x, weight, bias, mean, variance, False, momentum, eps)
    made = s.normalized(x, range(2, x.num_dims), eps)
    return _of_channels(s, made, weight, bias)


def variance_and_mean(
    s: Steps,
    x: Tensor,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return variance and mean along dims (none: all); n - correction elements are counted."""
    if isinstance(dim, bool):  # of all elements, unbiased or not
        dim, unbiased = None, dim
    over = [dim] if isinstance(dim, int) else [*(dim or range(x.num_dims))]
    mean, _, variance = s.moments(x, over)
    count = math.prod(x.dims[d] for d in over)
    less = float(unbiased if correction is None else correction)
    if count <= less:
        raise GraphError(f"the variance of {count} elements with correction={less}")
    made = (s("mul", variance, count / (count - less)) if less else variance, mean)
    return made if keepdim else (s.shortened(made[0], over), s.shortened(made[1], over))


def vector_norm(
    s: Steps, x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Tensor:
    """Return the sum of magnitudes or the root of the sum of squares."""
    over = [dim] if isinstance(dim, int) else dim or []
    if ord == 1:
        return s.reduce("reduction", s("abs", x), over, keep=keepdim)
    if ord in (2, "fro", None):
        return s("sqrt", s.reduce("reduction", s("square", x), over, keep=keepdim))
    raise GraphError(f"a norm of order {ord!r}", "orders: 1, 2")


def linalg_norm(
    s: Steps, x: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False
) -> Tensor:
    """Return a vector's norm, or a matrix's root of the sum of squares."""
    several = x.num_dims > 1 if dim is None else not isinstance(dim, int) and len(dim) > 1
    if several and ord not in (None, "fro"):
        raise GraphError(f"a matrix's norm of order {ord!r}", "linalg.vector_norm takes vectors")
    return vector_norm(s, x, 2 if ord is None else ord, dim, keepdim)
