"""Products that PyTorch runs, of rows that do not begin at multiples of 16 bytes.

cuBLAS multiplies such rows at a quarter of the speed of others. Where all extents are large, copies
of both operands that are padded with zeros cost less: on an H200 8205 x 2949 by 2949 x 5921 takes
0.69 ms instead of 2.12, 512 x 513 by 513 x 512 8.4 us instead of 11.2.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

ALIGNED = 8  # elements of 16 bits in 16 bytes
LEAST = 512  # of all three extents: below, copies take as long as they save
LINEAR = "aten.linear.default"
PRODUCTS = ("aten.mm.default", "aten.matmul.default", LINEAR)


def is_slow(name: str, args: list[Any]) -> bool:
    """Say whether PyTorch's operator multiplies large matrices of 16 bits whose rows are uneven."""
    if name not in PRODUCTS or len(args) < 2:
        return False
    x, w = args[:2]
    if not x.is_cuda or x.element_size() != 2 or w.dim() != 2 or x.dim() < 2:
        return False
    uneven = any(max(t.stride()[-2:]) % ALIGNED for t in (x, w))
    return bool(uneven and min(prod(x.shape[:-1]), *w.shape) >= LEAST)


def multiplied(name: str, operator: Callable[..., Tensor], args: list[Any]) -> Tensor:
    """Return what an operator of `PRODUCTS` makes of its arguments, contiguous."""
    x, w, *biases = args
    rows = x.reshape(-1, x.shape[-1])
    outer, inner = (-n % ALIGNED for n in w.shape)
    depth, columns = (inner, outer) if name == LINEAR else (outer, inner)
    biases = [pad(b, (0, columns)) if isinstance(b, Tensor) else b for b in biases]
    made = operator(pad(rows, (0, depth)), pad(w, (0, inner, 0, outer)), *biases)
    made = made[:, : made.shape[1] - columns].contiguous()
    return made.reshape(*x.shape[:-1], made.shape[1])


def called(name: str, operator: Callable[..., Any], args: list[Any], named: dict[str, Any]) -> Any:
    """Return what an operator makes of its arguments."""
    if not named and is_slow(name, args):
        return multiplied(name, operator, args)
    return operator(*args, **named)
