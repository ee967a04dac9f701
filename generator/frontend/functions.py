"""ATen's elementwise functions that are made of the language's, with ATen's parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.program import Tensor
from mirage_kernels.generator.frontend.steps import Operand, Steps

LEAST = 2.0**-126  # normal number of fp32


def choose(s: Steps, condition: Tensor, a: Operand, b: Operand) -> Tensor:
    """Return a where a number is 1 and b where it is 0, whatever the other one is."""
    other = s("sub", 1.0, condition)
    sides = (
        s("masked", c, x) if isinstance(x, Tensor) else s("mul", c, x)
        for c, x in ((condition, a), (other, b))
    )
    return s("add", *sides)


def _round(s: Steps, x: Tensor, *, decimals: int = 0) -> Tensor:
    if decimals:
        raise GraphError("round to decimals", "round x * 10**n, and divide")
    return s("round", x)


def _trunc(s: Steps, x: Tensor) -> Tensor:
    """floor(|x|) with the sign of x."""
    return s("mul", s("floor", s("abs", x)), _sign(s, x))


def _sign(s: Steps, x: Tensor) -> Tensor:
    return s("sub", s("gt", x, 0.0), s("gt", s("neg", x), 0.0))


def _remainder(s: Steps, a: Operand, b: Operand) -> Tensor:
    """a - b * floor(a / b), of the sign of b."""
    return s("sub", a, s("mul", b, s("floor", s("div", a, b))))


def _fmod(s: Steps, a: Tensor, b: Operand) -> Tensor:
    """a - b * trunc(a / b), of the sign of a."""
    return s("sub", a, s("mul", b, _trunc(s, s("div", a, b))))


def _prelu(s: Steps, x: Tensor, weight: Tensor) -> Tensor:
    """max(x, 0) + weight * min(x, 0), weight of every channel, dim 1."""
    if x.num_dims > 1:
        weight = s.reshape(weight, (1, weight.dims[0], *(1,) * (x.num_dims - 2)))
    return s("add", s("relu", x), s("mul", weight, s.minimum(x, 0.0)))


def _celu(s: Steps, x: Tensor, alpha: float = 1.0) -> Tensor:
    """max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)."""
    return s("mul", s("elu", s("mul", x, 1 / alpha)), alpha) if alpha != 1 else s("elu", x)


def _softshrink(s: Steps, x: Tensor, lambd: float = 0.5) -> Tensor:
    """x - min(max(x, -lambd), lambd)."""
    return s("sub", x, s.minimum(s("max", x, -lambd), lambd))


def _hardshrink(s: Steps, x: Tensor, lambd: float = 0.5) -> Tensor:
    return s("masked", s("gt", s("abs", x), lambd), x)


def _threshold(s: Steps, x: Tensor, threshold: float, value: float) -> Tensor:
    return choose(s, s("gt", x, threshold), x, value)


def _logit(s: Steps, x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), x kept between eps and 1 - eps."""
    if eps is not None:
        x = s.minimum(s("max", x, eps), 1 - eps)
    return s("log", s("div", x, s("sub", 1.0, x)))


def _expm1(s: Steps, x: Tensor) -> Tensor:
    """tanh(x / 2) * (exp(x) + 1), which keeps its digits near 0."""
    return s("mul", s("tanh", s("mul", x, 0.5)), s("add", s("exp", x), 1.0))


def _log1p(s: Steps, x: Tensor) -> Tensor:
    """log(1 + x), of an exponential the softplus: the exponential may overflow."""
    power = s.operand_of("exp", x)
    return s("log1p", x) if power is None else s("softplus", power)


def _cosh(s: Steps, x: Tensor) -> Tensor:
    return s("mul", s("add", s("exp", x), s("exp", s("neg", x))), 0.5)


def _hypot(s: Steps, a: Tensor, b: Tensor) -> Tensor:
    """The larger of |a| and |b| times sqrt(1 + r * r), r the smaller over it: squares overflow."""
    a, b = (s("abs", x) for x in (a, b))
    larger = s("max", a, b)
    ratio = s("div", s.minimum(a, b), s("max", larger, LEAST))
    return s("mul", larger, s("sqrt", s("add", s("square", ratio), 1.0)))


def _dot(s: Steps, a: Tensor, b: Tensor) -> Tensor:
    return s.reduce("reduction", s("mul", a, b), [], keep=False)


def _outer(s: Steps, a: Tensor, b: Tensor) -> Tensor:
    return s("mul", s.reshape(a, (*a.dims, 1)), b)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: (lambda s, x, op=name: s(op, x)) for name in ("erf", "floor")},
    **{name: (lambda s, a, b, op=name: s(op, a, b)) for name in ("gt", "ge", "masked")},
    "round": _round,
    "ceil": lambda s, x: s("neg", s("floor", s("neg", x))),
    "trunc": _trunc,
    "fix": _trunc,
    "frac": lambda s, x: s("sub", x, _trunc(s, x)),
    "sign": _sign,
    "sgn": _sign,
    "remainder": _remainder,
    "fmod": _fmod,
    "floor_divide": lambda s, a, b: s("floor", s("div", a, b)),
    "expm1": _expm1,
    "log1p": _log1p,
    "log10": lambda s, x: s("mul", s("log", x), 1 / math.log(10)),
    "sinh": lambda s, x: s("mul", s("tanh", x), _cosh(s, x)),
    "cosh": _cosh,
    "tan": lambda s, x: s("div", s("sin", x), s("cos", x)),
    "erfc": lambda s, x: s("sub", 1.0, s("erf", x)),
    "prelu": _prelu,
    "celu": _celu,
    "softshrink": _softshrink,
    "hardshrink": _hardshrink,
    "tanhshrink": lambda s, x: s("sub", x, s("tanh", x)),
    "threshold": _threshold,
    "logit": _logit,
    "hypot": _hypot,
    "deg2rad": lambda s, x: s("mul", x, math.pi / 180),
    "rad2deg": lambda s, x: s("mul", x, 180 / math.pi),
    "dot": _dot,
    "vdot": _dot,
    "outer": _outer,
}
