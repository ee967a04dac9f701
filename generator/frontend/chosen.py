"""Whole numbers and choices by position or by elements of tensors, and views of them.

No kernel stores them: it compares positions, and reads tensors of whole numbers and truth values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.program import Tensor

Extents = tuple[int, ...]


@dataclass(frozen=True)
class Elements:
    """Elements of a tensor of whole numbers, or of truth values as 1 and 0.

    `at` has for each dim of what is made of them the dim of the tensor that it is, or -1.
    """

    tensor: Tensor
    at: tuple[int, ...]

    def seen(self, at: Sequence[int]) -> Elements:
        """Return those of a view, whose dims are these of what was made, or -1."""
        return replace(self, at=tuple(-1 if d < 0 else self.at[d] for d in at))


@dataclass(frozen=True)
class Whole:
    """Positions and elements times factors, plus a number; as a condition that is at least 0."""

    factors: tuple[int, ...]
    number: int
    elements: tuple[tuple[Elements, int], ...] = ()  # with their factors

    def seen(self, at: Sequence[int]) -> Whole:
        """Return the number of a view, whose dims are these of what was made, or -1."""
        factors = tuple(0 if d < 0 else self.factors[d] for d in at)
        elements = tuple((x.seen(at), f) for x, f in self.elements)
        return replace(self, factors=factors, elements=elements)

    def __mul__(self, n: int) -> Whole:
        elements = tuple((x, f * n) for x, f in self.elements)
        return Whole(tuple(f * n for f in self.factors), self.number * n, elements)

    def __add__(self, other: Whole) -> Whole:
        factors = tuple(a + b for a, b in zip(self.factors, other.factors, strict=True))
        sums = dict(self.elements)
        for own, f in other.elements:
            sums[own] = sums.get(own, 0) + f
        elements = tuple((own, f) for own, f in sums.items() if f)
        return Whole(factors, self.number + other.number, elements)

    def factors_of(self, elements: Iterable[Elements]) -> tuple[int, ...]:
        """Return the factors that elements have here."""
        own = dict(self.elements)
        return tuple(own.get(x, 0) for x in elements)

    def opposite(self) -> Whole:
        """Return the condition that this one does not hold: not f >= 0 is -f - 1 >= 0."""
        made = self * -1
        return replace(made, number=made.number - 1)


@dataclass(frozen=True)
class Counted:
    """A whole number for each element."""

    dims: Extents
    value: Whole


@dataclass(frozen=True)
class Chosen:
    """One of two numbers or tensors for each element: `inside` where all conditions hold."""

    dims: Extents
    conditions: tuple[Whole, ...]
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


Positional = Counted | Chosen


def _moved(x: Positional, dims: Sequence[int], at: Sequence[int]) -> Positional:
    """Return a view: its dims, and for each the dim of x that it is, or -1."""
    _require_shown(x)
    if isinstance(x, Counted):
        return Counted((*dims,), x.value.seen(at))
    return replace(x, dims=(*dims,), conditions=tuple(c.seen(at) for c in x.conditions))


def _require_shown(x: Positional) -> None:
    if isinstance(x, Chosen) and x.is_masked:
        raise GraphError("a view of hidden scores")


def counted(x: Tensor) -> Counted:
    """Return the elements of a tensor of whole numbers."""
    own = Elements(x, tuple(range(x.num_dims)))
    return Counted(x.dims, Whole((0,) * x.num_dims, 0, ((own, 1),)))


def given(x: Tensor) -> Chosen:
    """Return the truth values of a boolean tensor."""
    return Chosen(x.dims, (replace(counted(x).value, number=-1),), True, False)


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
    _require_shown(x)
    at = dim % len(x.dims)
    taken = range(x.dims[at])[slice(start, end, step)]

    def of(c: Whole) -> Whole:
        if any(own.at[at] >= 0 for own, _ in c.elements):
            raise GraphError("a slice of a mask or of whole numbers")
        factors = (*c.factors[:at], c.factors[at] * step, *c.factors[at + 1 :])
        return replace(c, factors=factors, number=c.number + c.factors[at] * taken.start)

    dims = (*x.dims[:at], len(taken), *x.dims[at + 1 :])
    if isinstance(x, Counted):
        return Counted(dims, of(x.value))
    return replace(x, dims=dims, conditions=tuple(of(c) for c in x.conditions))
