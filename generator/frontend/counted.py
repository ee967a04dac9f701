"""Whole numbers of positions and of tensors' elements: sums, products by numbers, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.chosen import Chosen, Counted, Extents, Whole


def arange(*args: Any, **_: Any) -> Counted:
    start, end, step = {1: (0, *args, 1), 2: (*args, 1)}.get(len(args), args)
    if not all(isinstance(n, int) for n in (start, end, step)):
        raise GraphError("arange of numbers that are not whole")
    return Counted((len(range(start, end, step)),), Whole((step,), start))


def over(dims: Extents, own: Extents, value: Whole) -> Whole:
    """Return a number or condition of a tensor that another broadcasts to."""
    missing = len(dims) - len(own)
    at = [d - missing if d >= missing else -1 for d in range(len(dims))]
    made = value.seen(at)
    factors = tuple(f if n > 1 else 0 for f, n in zip(made.factors, dims, strict=True))
    return replace(made, factors=factors)


def broadcast(*dims: Extents) -> Extents:
    rank = max(map(len, dims))
    rows = [(*(1,) * (rank - len(d)), *d) for d in dims]
    return tuple(map(max, *rows)) if len(rows) > 1 else rows[0]


def is_whole(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _whole(x: Any, dims: Extents) -> Whole:
    if isinstance(x, Counted):
        return over(dims, x.dims, x.value)
    if is_whole(x):
        return Whole((0,) * len(dims), x)
    raise GraphError("positions meet whole numbers and positions alone")


def _sum(a: Any, b: Any, sign: int) -> Counted:
    dims = broadcast(*(x.dims for x in (a, b) if isinstance(x, Counted)))
    return Counted(dims, _whole(a, dims) + _whole(b, dims) * sign)


def scaled(a: Any, b: Any) -> Counted:
    x, n = (a, b) if isinstance(a, Counted) else (b, a)
    if isinstance(n, Counted):
        raise GraphError("positions are multiplied by whole numbers alone")
    return Counted(x.dims, x.value * n)


def compared(a: Any, b: Any, *, strictly: bool) -> Chosen:
    """Return where a >= b, or a > b."""
    made = _sum(a, b, -1)
    own = replace(made.value, number=made.value.number - strictly)
    return Chosen(made.dims, (own,), True, False)


COMPARED: Mapping[str, Callable[[Any, Any], Chosen]] = {
    "ge": lambda a, b: compared(a, b, strictly=False),
    "gt": lambda a, b: compared(a, b, strictly=True),
    "le": lambda a, b: compared(b, a, strictly=False),
    "lt": lambda a, b: compared(b, a, strictly=True),
}
COUNTED: Mapping[str, Callable[[Any, Any], Counted]] = {
    "add": lambda a, b: _sum(a, b, 1),
    "sub": lambda a, b: _sum(a, b, -1),
    "rsub": lambda a, b: _sum(b, a, -1),
    "mul": scaled,
}
