"""Fractions of exponential sums: what arithmetic makes of one element of a value.

Adding fractions multiplies their denominators, unless a sum runs along a coordinate that the
denominator does not vary along: then all its terms share one denominator. A random function's
result is a fresh variable; the calls that an element depends on are counted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import lcm

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.meaning.expsums import (
    UNIT,
    VARIABLE,
    Coordinates,
    Ratio,
    Size,
    Terms,
)

Extents = Mapping[str, int]  # coordinate -> how many places there are along it


@dataclass(frozen=True)
class Call:
    """Calls of one random function: the size of their argument and how many there are."""

    function: str
    argument: Fraction
    along: Coordinates  # coordinates that the argument varies along, beside those counted
    number: int = 1


@dataclass(frozen=True)
class Fraction:
    """One element of a value: top / (scale * bottom), where it varies, the calls it depends on."""

    top: Terms
    bottom: Terms = UNIT
    scale: int = 1
    along: Extents = field(default_factory=dict)
    below: Coordinates = frozenset()  # coordinates that the denominator varies along
    calls: Mapping[str, Call] = field(default_factory=dict)
    exact: bool = False  # a number of just that height


def _joined(a: Fraction, b: Fraction, made: tuple[Terms, Terms, int]) -> Fraction:
    return Fraction(
        *made,
        {c: max(a.along.get(c, 1), b.along.get(c, 1)) for c in (*a.along, *b.along)},
        a.below | b.below,
        _merged(a.calls, b.calls),
    )


def _merged(a: Mapping[str, Call], b: Mapping[str, Call]) -> dict[str, Call]:
    calls = {**b, **a}
    for name in a.keys() & b.keys():
        if a[name] != b[name]:  # reduced differently on their ways: perhaps not the same calls
            number, along = a[name].number + b[name].number, a[name].along | b[name].along
            calls[name] = replace(a[name], number=number, along=along)
    return calls


def number(height: int, along: Extents | None = None, *, exact: bool = False) -> Fraction:
    """Return a whole number of at most that size, which may vary along coordinates."""
    return Fraction(Terms(Size(0, height), count=min(height, 1)), along=along or {}, exact=exact)


def variable(along: Extents, *, tied: bool = False) -> Fraction:
    """Return one random element per place; `tied` when it is one of the chosen input's."""
    ties = frozenset(along) if tied else None
    return Fraction(Terms(VARIABLE, tied=ties), along=along)


def cross(a: Fraction, b: Fraction) -> Terms:
    """Return the numerator of a + b or a - b over their common denominator."""
    scale = lcm(a.scale, b.scale)
    return (a.top * b.bottom).times(scale // a.scale) + (b.top * a.bottom).times(scale // b.scale)


def add(a: Fraction, b: Fraction) -> Fraction:
    return _joined(a, b, (cross(a, b), a.bottom * b.bottom, lcm(a.scale, b.scale)))


def mul(a: Fraction, b: Fraction) -> Fraction:
    return _joined(a, b, (a.top * b.top, a.bottom * b.bottom, a.scale * b.scale))


def div(a: Fraction, b: Fraction) -> Fraction:
    if b.exact and b.top.count:
        return replace(a, scale=a.scale * b.top.coefficient.height, exact=False)
    joined = _joined(a, b, ((a.top * b.bottom).times(b.scale), a.bottom * b.top, a.scale))
    return replace(joined, below=joined.below | frozenset(b.along))


def exp(a: Fraction) -> Fraction:
    if not (a.top.plain and a.bottom.plain):
        raise VerifyError("exp of a value that depends on another exp has no failure bound")
    exponent = Ratio(a.top.coefficient, a.bottom.coefficient, a.scale)
    power = Terms(exponent=exponent, varies=frozenset(a.along))
    return Fraction(power, along=a.along, calls=a.calls)


def called(function: str, a: Fraction, name: str) -> Fraction:
    """Return a random function of `a`; calls of one `name` with equal arguments are one call."""
    call = Call(function, Fraction(a.top, a.bottom, a.scale), frozenset(a.along))
    return replace(variable(a.along), calls=_merged(a.calls, {name: call}))


def maximum(a: Fraction, b: Fraction, name: str) -> Fraction:
    """Return the random function of two numbers in any order: f(f(a) + f(b))."""
    inner = [called("max", x, f"{name}.{i}") for i, x in enumerate((a, b))]
    return called("max", add(*inner), name)


def mask(*args: Fraction) -> Fraction:
    return number(1, {c: n for a in args for c, n in a.along.items()})


def where(condition: Fraction, a: Fraction, b: Fraction) -> Fraction:
    if not a.top.count or not b.top.count:  # 0 has any denominator
        a = b = a if a.top.count else b
    scale = lcm(a.scale, b.scale)
    mine, theirs = (x.top.times(scale // x.scale) for x in (a, b))
    joined = _joined(a, b, (mine.either(theirs), a.bottom.either(b.bottom), scale))
    mask, top = frozenset(condition.along), joined.top
    if not top.plain:
        top = replace(top, varies=top.varies | mask)
    below = joined.below if a.bottom == b.bottom else joined.below | mask
    return replace(joined, top=top, below=below, along={**condition.along, **joined.along})


def total(a: Fraction, coordinate: str, length: int) -> Fraction:
    """Return the sum of a value along a coordinate of that extent."""
    top, bottom = a.top, a.bottom
    if coordinate in a.below:
        top, bottom = top * bottom.to_the(length - 1), bottom.to_the(length)
    calls = {
        name: replace(c, number=c.number * length) if coordinate in c.along else c
        for name, c in a.calls.items()
    }
    summed = top.summed(coordinate, length)
    whole = Fraction(summed, bottom, a.scale, a.along, a.below, calls)
    return at_one(whole, coordinate)


def at_one(a: Fraction, coordinate: str) -> Fraction:
    """Return a value at one place along a coordinate."""
    only = frozenset({coordinate})
    return Fraction(
        a.top.without(coordinate),
        a.bottom.without(coordinate),
        a.scale,
        {c: n for c, n in a.along.items() if c != coordinate},
        a.below - only,
        {name: replace(c, along=c.along - only) for name, c in a.calls.items()},
    )


def rescaled(x: Fraction, peak: Fraction) -> Fraction:
    """Return x times one power: exp(peak - another peak)."""
    exponent = Ratio(peak.top.coefficient, peak.bottom.coefficient, peak.scale)
    factor = Terms(exponent=exponent + exponent, varies=frozenset(peak.along))
    return mul(x, Fraction(factor, along=peak.along))


@dataclass(frozen=True)
class Cut:
    """How a dim of a whole tensor is seen in a block: within the tile, and along grid or loop."""

    dim: str
    within: int
    axes: Extents


def tile(a: Fraction, cuts: Mapping[str, Cut], name: str) -> Fraction:
    """Return what a block sees of a tensor through its input `name`."""

    def seen(coordinates: Coordinates) -> Coordinates:
        new = (axis for c in coordinates if c in cuts for axis in cuts[c].axes)
        return coordinates | frozenset(new)

    along: dict[str, int] = {}
    for c, n in a.along.items():
        along |= {c: cuts[c].within, **cuts[c].axes} if c in cuts else {c: n}
    calls = {f"{name}:{k}": replace(c, along=seen(c.along)) for k, c in a.calls.items()}
    top, bottom = _moved(a.top, seen), _moved(a.bottom, seen)
    return Fraction(top, bottom, a.scale, along, seen(a.below), calls)


def stored(a: Fraction, whole: Extents, cuts: Mapping[str, Coordinates]) -> Fraction:
    """Return the tensor whose tiles blocks store: dims with extents, axes that cut each dim."""

    def left(coordinates: Coordinates) -> Coordinates:
        return frozenset(d for d in whole if d in coordinates or cuts[d] & coordinates)

    def kept_apart(coordinates: Coordinates) -> Coordinates:
        within = (d for d in whole if d in coordinates or d not in a.along)
        return frozenset(d for d in within if cuts[d] <= coordinates)

    calls = {name: replace(c, along=left(c.along)) for name, c in a.calls.items()}
    top = _moved(a.top, left)
    if a.top.tied is not None:
        top = replace(top, tied=kept_apart(a.top.tied))
    return Fraction(top, _moved(a.bottom, left), a.scale, whole, left(a.below), calls)


def _moved(terms: Terms, to: Callable[[Coordinates], Coordinates]) -> Terms:
    tied = None if terms.tied is None else to(terms.tied)
    return replace(terms, varies=to(terms.varies), tied=tied)
