"""ATen's losses as steps of positional programs; `reduction` is a number, as in ATen."""

from __future__ import annotations

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.norms import vector_norm
from mirage_kernels.generator.frontend.positional.program import Tensor
from mirage_kernels.generator.frontend.steps import Steps

_REDUCTIONS = ("", "mean", "reduction")  # by number, as PyTorch counts: none, mean, sum
LEAST = 2.0**-126  # normal fp32 number: log of it is finite


def reduced(s: Steps, x: Tensor, reduction: int) -> Tensor:
    """Reduce the loss of each element as asked for."""
    return s.reduce(_REDUCTIONS[reduction], x, [], keep=False) if reduction else x


def smooth_l1(s: Steps, x: Tensor, y: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    """m * (d - m / 2) / beta, where d = |x - y| and m = min(d, beta)."""
    distance = s("abs", s("sub", x, y))
    if beta == 0:
        return reduced(s, distance, reduction)
    low = s.minimum(distance, beta)
    made = s("mul", low, s("sub", distance, s("mul", low, 0.5)))
    return reduced(s, made if beta == 1 else s("div", made, beta), reduction)


def huber(s: Steps, x: Tensor, y: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """delta * smooth_l1 with beta = delta."""
    made = smooth_l1(s, x, y, 0, delta)
    return reduced(s, made if delta == 1 else s("mul", made, delta), reduction)


def divergence(
    s: Steps, x: Tensor, y: Tensor, reduction: int = 1, *, log_target: bool = False
) -> Tensor:
    """y * (log(y) - x), which is 0 where the target y is 0."""
    log, value = (y, s("exp", y)) if log_target else (s("log", s("max", y, LEAST)), y)
    return reduced(s, s("mul", value, s("sub", log, x)), reduction)


def cross_entropy_of_logits(
    s: Steps,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    """softplus(-x) * y + softplus(x) * (1 - y): that of shares sigmoid(x)."""
    if pos_weight is None:
        made = s("sub", s("softplus", x), s("mul", x, y))
    else:
        positive = s("mul", s("mul", s("softplus", s("neg", x)), pos_weight), y)
        made = s("add", positive, s("mul", s("softplus", x), s("sub", 1.0, y)))
    return reduced(s, made if weight is None else s("mul", made, weight), reduction)


def soft_margin(s: Steps, x: Tensor, y: Tensor, reduction: int = 1) -> Tensor:
    """log(1 + exp(-y * x))."""
    return reduced(s, s("softplus", s("neg", s("mul", y, x))), reduction)


def margin_ranking(
    s: Steps, a: Tensor, b: Tensor, y: Tensor, margin: float = 0.0, reduction: int = 1
) -> Tensor:
    """max(-y * (a - b) + margin, 0)."""
    made = s("mul", s("neg", y), s("sub", a, b))
    return reduced(s, s("relu", s("add", made, margin) if margin else made), reduction)


def cosine(s: Steps, x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x * y, summed, over max(|x|, eps) * max(|y|, eps)."""
    lengths = (s("max", vector_norm(s, v, 2.0, dim), eps) for v in (x, y))
    total = s.reduce("reduction", s("mul", x, y), [dim], keep=False)
    return s("div", total, s("mul", *lengths))


def triplet(
    s: Steps,
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = 1,
) -> Tensor:
    """max(|anchor - positive| - |anchor - negative| + margin, 0)."""
    if swap:
        raise GraphError("triplet_margin_loss with swap", "swap=False has a form")
    near, far = (
        vector_norm(s, s("add", s("sub", anchor, other), eps), p, -1)
        for other in (positive, negative)
    )
    return reduced(s, s("max", s("add", s("sub", near, far), margin), 0.0), reduction)
