"""Whole numbers and choices by position or by a boolean tensor, and views of them.

No kernel stores them: it compares positions, and reads the elements of the boolean tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.positions import Condition
from mirage_kernels.generator.frontend.positional.program import Tensor

Extents = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """A condition on an element of a boolean tensor: that it `holds`, or that it does not.

    `at` has for each dim of what is chosen the dim of the tensor that it is, or -1.
    """

    tensor: Tensor
    at: tuple[int, ...]
    holds: bool = True

    def seen(self, at: Sequence[int]) -> Held:
        """Return the condition on a view, whose dims are these of what was chosen, or -1."""
        return replace(self, at=tuple(-1 if d < 0 else self.at[d] for d in at))


Test = Condition | Held


@dataclass(frozen=True)
class Affine:
    """A whole number for each element: positions times factors, plus a number."""

    dims: Extents
    value: Condition


@dataclass(frozen=True)
class Chosen:
    """One of two numbers or tensors for each element: `inside` where all conditions hold."""

    dims: Extents
    conditions: tuple[Test, ...]
    inside: Any  # a number, a truth value, or a tensor
    outside: float

    @property
    def is_masked(self) -> bool:
        """Say whether it is a tensor of which some elements are hidden."""
        return isinstance(self.inside, Tensor)

    @property
    def is_alternative(self) -> bool:
        """Say whether it is a mask where one of several conditions holds, or 0 there, else -inf.

        Softmax takes no such mask.
        """
        sides = [(False, True), (-math.inf, 0)]
        return len(self.conditions) > 1 and (self.inside, self.outside) in sides


Positional = Affine | Chosen


def _moved(x: Positional, dims: Sequence[int], at: Sequence[int]) -> Positional:
    """Return a view: its dims, and for each the dim of x that it is, or -1."""
    if isinstance(x, Chosen) and x.is_masked:
        raise GraphError("a view of hidden scores")

    def of(c: Condition) -> Condition:
        return tuple(0 if d < 0 else c[0][d] for d in at), c[1]

    if isinstance(x, Affine):
        return Affine((*dims,), of(x.value))
    tests = (c.seen(at) if isinstance(c, Held) else of(c) for c in x.conditions)
    return replace(x, dims=(*dims,), conditions=tuple(tests))


def given(x: Tensor) -> Chosen:
    """Return the truth values of a boolean tensor."""
    return Chosen(x.dims, (Held(x, tuple(range(x.num_dims))),), True, False)


def reshaped(x: Positional, shape: Sequence[int]) -> Positional:
    """Insert and leave out dims of one element."""
    count = math.prod(x.dims)
    known = math.prod(n for n in shape if n >= 0)
    whole = [n if n >= 0 else count // known for n in shape]
    longer = [i for i, n in enumerate(x.dims) if n > 1]
    if [n for n in whole if n > 1] != [x.dims[i] for i in longer]:
        raise GraphError("positions in another shape")
    left = iter(longer)
    return _moved(x, whole, [next(left) if n > 1 else -1 for n in whole])


def unsqueezed(x: Positional, dim: int) -> Positional:
    at = dim % (len(x.dims) + 1)
    own = [*range(len(x.dims))]
    return _moved(x, (*x.dims[:at], 1, *x.dims[at:]), (*own[:at], -1, *own[at:]))


def permuted(x: Positional, order: Sequence[int]) -> Positional:
    places = [d % len(x.dims) for d in order]
    return _moved(x, [x.dims[d] for d in places], places)


def transposed(x: Positional, a: int = 0, b: int = 1) -> Positional:
    order = [*range(len(x.dims))]
    order[a], order[b] = order[b], order[a]
    return permuted(x, order)


def expanded(x: Positional, shape: Sequence[int], **_: Any) -> Positional:
    dims = [*(1,) * (len(shape) - len(x.dims)), *x.dims]
    missing = len(dims) - len(x.dims)
    whole = [n if m < 0 else m for m, n in zip(shape, dims, strict=True)]
    return _moved(x, whole, [d - missing if d >= missing else -1 for d in range(len(dims))])


def sliced(
    x: Positional, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Positional:
    at = dim % len(x.dims)
    taken = range(x.dims[at])[slice(start, end, step)]

    def of(c: Condition) -> Condition:
        factors = (*c[0][:at], c[0][at] * step, *c[0][at + 1 :])
        return factors, c[1] + c[0][at] * taken.start

    made = _moved(x, (*x.dims[:at], len(taken), *x.dims[at + 1 :]), range(len(x.dims)))
    if isinstance(made, Affine):
        return replace(made, value=of(made.value))
    if any(isinstance(c, Held) for c in made.conditions):
        raise GraphError("a slice of a mask")
    return replace(made, conditions=tuple(of(c) for c in made.conditions if isinstance(c, tuple)))
