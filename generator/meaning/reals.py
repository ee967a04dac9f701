"""Real numbers: float64 as the oracle, and emulated storage precision for the numeric gate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.meaning.arrays import Arithmetic, Part, Parts

Real = npt.NDArray[np.floating]


def _sigmoid(x: Real) -> Real:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Real) -> Real:
    """log(1 + exp(x)), of which no exponential is large."""
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _elu(x: Real) -> Real:
    """x, or exp(x) - 1 where x is negative."""
    return np.asarray(np.where(x > 0, x, np.expm1(np.minimum(x, 0))))


def _one(function: Callable[..., Part]) -> Callable[..., Parts]:
    """Lift a function of arrays to one-part values; overflow and 0/0 give inf and nan silently."""

    def apply(*operands: Parts) -> Parts:
        with np.errstate(all="ignore"):
            return (function(*(o[0] for o in operands)),)

    return apply


def _decay(old: Parts, new: Parts) -> Parts:
    """Return exp(old - new), 1 where they are equal, infinite ones too."""
    with np.errstate(all="ignore"):
        factor = np.exp(np.subtract(old[0], new[0]))
        return (np.where(old[0] == new[0], np.ones_like(factor), factor),)


LOWEST = float(np.finfo(np.float32).min)  # a peak of nothing, or of -inf: exp(x - peak) is 0
_erf = np.vectorize(math.erf, otypes=[np.float64])
_SLOPE = 2 * math.sqrt(2 / math.pi)  # (1 + tanh(y)) / 2 = sigmoid(2 y)

ELEMENTWISE: dict[str, Callable[..., Parts]] = {
    "neg": _one(np.negative),
    "exp": _one(np.exp),
    "log": _one(np.log),
    "sqrt": _one(np.sqrt),
    "rsqrt": _one(lambda x: 1 / np.sqrt(x)),
    "square": _one(np.square),
    "sigmoid": _one(_sigmoid),
    "silu": _one(lambda x: x * _sigmoid(x)),
    "gelu": _one(
        lambda x: x * (1 + _erf(x / np.sqrt(np.asarray(2.0, x.dtype))).astype(x.dtype)) / 2
    ),
    "gelu_tanh": _one(lambda x: x * _sigmoid(x * (_SLOPE + _SLOPE * 0.044715 * x * x))),
    "tanh": _one(np.tanh),
    "relu": _one(lambda x: np.maximum(x, 0)),
    "abs": _one(np.absolute),
    "softplus": _one(_softplus),
    "mish": _one(lambda x: x * np.tanh(_softplus(x))),
    "elu": _one(_elu),
    "sin": _one(np.sin),
    "cos": _one(np.cos),
    "erf": _one(lambda x: _erf(x).astype(x.dtype)),
    "floor": _one(np.floor),
    "round": _one(np.rint),
    "inner_exp": _one(np.exp),
    "log1p": _one(np.log1p),
    "gt": _one(lambda a, b: np.greater(a, b).astype(a.dtype)),
    "ge": _one(lambda a, b: np.greater_equal(a, b).astype(a.dtype)),
    "masked": _one(lambda c, a: np.where(c != 0, a, np.zeros_like(a))),
    "max": _one(np.maximum),
    "add": _one(np.add),
    "sub": _one(np.subtract),
    "mul": _one(np.multiply),
    "div": _one(np.divide),
}


def _largest(x: Parts, axis: int, of_nothing: float = -np.inf) -> Parts:
    """Return the maximum along an axis."""
    return (np.max(x[0], axis=axis, initial=of_nothing),)


FLOAT64 = Arithmetic(
    "float64",
    ELEMENTWISE,
    total=lambda x, axis: _one(partial(np.sum, axis=axis))(x),
    largest=_largest,
    matmul=_one(np.matmul),
    number=lambda data: (np.asarray(data, np.float64),),
    peak=lambda x, axis, seed: _largest(x, axis, LOWEST),
    higher=_one(np.maximum),
    decay=_decay,
)


def round_to(x: Part, dtype: DType) -> npt.NDArray[np.float32]:
    """Return `x` rounded to the values that `dtype` can hold, as float32."""
    with np.errstate(over="ignore"):
        wide = np.asarray(x, np.float32)
        if dtype is DType.FP16:
            return wide.astype(np.float16).astype(np.float32)
    if dtype is not DType.BF16:
        return wide
    bits = wide.view(np.uint32)
    nearest_even = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(wide), nearest_even.view(np.float32), wide)


# Sums are made in float64 and rounded to fp32 once: the order in which a machine adds must not
# show in the errors that records hold.
STORAGE = replace(
    FLOAT64,
    name="storage",
    total=lambda x, axis: FLOAT64.total(FLOAT64.number(x[0]), axis),
    matmul=lambda a, b: FLOAT64.matmul(FLOAT64.number(a[0]), FLOAT64.number(b[0])),
    number=lambda data: (np.asarray(data, np.float32),),
    finish=lambda node, parts: (round_to(parts[0], node.out.type.dtype),),
)
