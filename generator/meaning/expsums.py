"""How large the values of a program are: fractions of exponential sums c_j * w^E_j.

A value mod p is a quotient of such sums: the coefficients c_j are polynomials in the random
elements mod p, the exponents E_j quotients of polynomials in those mod q, and w is a random element
of order q. What has not been through exp is one term with exponent 0. The algebra below bounds what
arithmetic makes of them: degrees, heights (sums of absolute coefficients), numbers of terms.
`vanishing` says how likely such a sum is 0 at a random point although it is not the zero sum;
docs/verification.md derives it. Roots of sparse polynomials over a finite field: Canetti et al.
(2000), Kelley (2016).

Adding fractions multiplies their denominators, unless a sum runs along a coordinate that the
denominator does not vary along: then all its terms share one denominator. A random function's
result is a fresh variable; the calls that an element depends on are counted with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import lcm

from mirage_kernels.generator.errors import VerifyError

Coordinates = frozenset[str]  # dims, within a tile where a block cuts them; "@axis" of grid, loop
Extents = Mapping[str, int]  # coordinate -> how many places there are along it
Move = Callable[[Coordinates], Coordinates]

BEYOND = 2**200  # numbers above this are as good as infinite


@dataclass(frozen=True)
class Size:
    """A polynomial's degree, and its height: the sum of its coefficients' absolute values."""

    degree: int
    height: int

    def __mul__(self, other: Size) -> Size:
        if not self.height or not other.height:
            return NOTHING
        return Size(self.degree + other.degree, min(self.height * other.height, BEYOND))

    def __add__(self, other: Size) -> Size:
        degree = max(self.degree, other.degree)
        return Size(degree, min(self.height + other.height, BEYOND))

    def times(self, factor: int) -> Size:
        """Return the size of the polynomial times a whole number."""
        return Size(self.degree, min(self.height * factor, BEYOND))

    def either(self, other: Size) -> Size:
        """Return the size of what may be one or the other."""
        return Size(max(self.degree, other.degree), max(self.height, other.height))


NOTHING = Size(0, 0)
ONE = Size(0, 1)
VARIABLE = Size(1, 1)


@dataclass(frozen=True)
class Ratio:
    """A quotient of polynomials mod q, an exponent: top / (scale * bottom), `scale` a number."""

    top: Size = NOTHING
    bottom: Size = ONE
    scale: int = 1

    def __add__(self, other: Ratio) -> Ratio:
        scale, mine, theirs = _over_one_scale(self.scale, other.scale)
        top = self.top.times(mine) * other.bottom + other.top.times(theirs) * self.bottom
        return Ratio(top, self.bottom * other.bottom, scale)

    def either(self, other: Ratio) -> Ratio:
        """Return the size of what may be one or the other."""
        scale, mine, theirs = _over_one_scale(self.scale, other.scale)
        top = self.top.times(mine).either(other.top.times(theirs))
        return Ratio(top, self.bottom.either(other.bottom), scale)


@dataclass(frozen=True)
class Terms:
    """A sum of terms c_j * w^E_j: how many there are at most, and how large.

    `most` is the number of terms that a single monomial in one chosen input's variables can have.
    `tied` is None where that input does not occur; else it holds coordinates such that elements of
    the value which differ in one of them have no such monomial in common.
    """

    coefficient: Size = ONE
    count: int = 1
    exponent: Ratio = Ratio()
    varies: Coordinates = frozenset()  # along which the exponents vary
    most: int = 1
    tied: Coordinates | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing in it has been through exp."""
        return self.count <= 1 and self.exponent == Ratio()

    def __mul__(self, other: Terms) -> Terms:
        count = min(self.count * other.count, BEYOND)
        most, tied = self.most * other.most, self.tied if other.tied is None else other.tied
        if self.tied is not None and other.tied is not None:
            most, tied = count, frozenset()  # v and w^a v + w^b u make two terms with u v
        coefficient, exponent = self.coefficient * other.coefficient, self.exponent + other.exponent
        varies = self.varies | other.varies
        return Terms(coefficient, count, exponent, varies, min(most, count), tied)

    def __add__(self, other: Terms) -> Terms:
        plain = self.plain and other.plain
        count = min(self.count + other.count, 1 if plain else BEYOND)
        tied = None if self.tied is None and other.tied is None else frozenset[str]()
        coefficient, most = self.coefficient + other.coefficient, min(self.most + other.most, count)
        exponent = self.exponent.either(other.exponent)
        return Terms(coefficient, count, exponent, self.varies | other.varies, most, tied)

    def either(self, other: Terms) -> Terms:
        """Return the size of what may be one or the other, element by element."""
        tied: Coordinates | None = frozenset()
        if not self.count or (self.tied is None and other.tied is None):
            tied = other.tied  # 0 has no monomials that could meet
        elif not other.count:
            tied = self.tied
        count, most = max(self.count, other.count), max(self.most, other.most)
        coefficient = self.coefficient.either(other.coefficient)
        exponent = self.exponent.either(other.exponent)
        return Terms(coefficient, count, exponent, self.varies | other.varies, most, tied)

    def times(self, factor: int) -> Terms:
        """Return the size of the sum times a whole number."""
        return replace(self, coefficient=self.coefficient.times(factor))

    def summed(self, coordinate: str, length: int) -> Terms:
        """Return the size of the sum along a coordinate of that extent."""
        repeated = length if coordinate in self.varies else 1
        count = min(self.count * repeated, BEYOND)
        apart = self.tied is not None and coordinate in self.tied
        most = self.most if apart else min(self.most * repeated, count)
        left = self.moved(lambda c: c - {coordinate}).times(length)
        return replace(left, count=count, most=most)

    def moved(self, to: Move) -> Terms:
        """Return the same terms along other coordinates."""
        tied = None if self.tied is None else to(self.tied)
        return replace(self, varies=to(self.varies), tied=tied)

    def to_the(self, power: int) -> Terms:
        """Return the size of the product of so many sums like this one."""
        result, square = Terms(), self
        while power:
            if power & 1:
                result = result * square
            square, power = square * square, power >> 1
        return result


UNIT = Terms()


def vanishing(terms: Terms, p: int) -> float:
    """Return how likely a sum of this size, not the zero sum, is 0 at a random point, at most.

    1 where a coefficient may be a multiple of p, or a difference of exponents one of q.
    """
    q, k = (p - 1) // 2, max(1, min(terms.count, terms.most))
    apart = (terms.exponent + terms.exponent).top  # of a difference of two exponents
    if terms.coefficient.height >= p or (k > 1 and apart.height >= q):
        return 1.0
    roots = k - 1  # the elements of order q for which k powers of them can cancel
    if k > 2:
        roots = min(q - 1, 2 * int(q * (q - 1) ** (-1 / (k - 1)) + 1e-6))
    collisions = (k - 1) * apart.degree / q
    return min(1.0, terms.coefficient.degree / p + collisions + roots / (q - 1))


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
    logged: bool = False  # the value is the logarithm of this fraction

    def moved(self, to: Move, along: Extents, *, prefix: str = "") -> Fraction:
        """Return the same element along other coordinates, its calls by other names."""
        top, bottom = self.top.moved(to), self.bottom.moved(to)
        calls = {prefix + n: replace(c, along=to(c.along)) for n, c in self.calls.items()}
        moved = Fraction(top, bottom, self.scale, along, to(self.below), calls)
        return replace(moved, logged=self.logged)

    def joined(self, other: Fraction, top: Terms, bottom: Terms, scale: int) -> Fraction:
        """Return a fraction that varies where two do and depends on the calls of both."""
        a, b = self.along, other.along
        along = {c: max(a.get(c, 1), b.get(c, 1)) for c in (*a, *b)}
        calls = _merged(self.calls, other.calls)
        return Fraction(top, bottom, scale, along, self.below | other.below, calls)

    def cross(self, other: Fraction) -> Terms:
        """Return the numerator of the sum or difference over a common denominator."""
        _, mine, theirs = _over_one_scale(self.scale, other.scale)
        return self.top.times(mine) * other.bottom + other.top.times(theirs) * self.bottom

    def __add__(self, other: Fraction) -> Fraction:
        scale = lcm(self.scale, other.scale)
        return self.joined(other, self.cross(other), self.bottom * other.bottom, scale)

    def __mul__(self, other: Fraction) -> Fraction:
        scale = self.scale * other.scale
        return self.joined(other, self.top * other.top, self.bottom * other.bottom, scale)

    def __truediv__(self, other: Fraction) -> Fraction:
        if other.exact and other.top.count:
            return replace(self, scale=self.scale * other.top.coefficient.height, exact=False)
        top = (self.top * other.bottom).times(other.scale)
        made = self.joined(other, top, self.bottom * other.top, self.scale)
        return replace(made, below=made.below | frozenset(other.along))

    def power(self, *, twice: bool = False) -> Fraction:
        """Return w to this element, or to the difference of two such elements."""
        exponent = Ratio(self.top.coefficient, self.bottom.coefficient, self.scale)
        exponent = exponent + exponent if twice else exponent
        return Fraction(Terms(exponent=exponent, varies=frozenset(self.along)), along=self.along)

    def exp(self) -> Fraction:
        """Return the power that it is the exponent of; raises VerifyError for powers of powers."""
        if not self.plain:
            raise VerifyError("exp of a value that depends on another exp has no failure bound")
        return replace(self.power(), calls=self.calls)

    def rescaled(self, peak: Fraction) -> Fraction:
        """Return the value times one power: exp(peak - another peak)."""
        return self * peak.power(twice=True)

    def called(self, function: str, name: str) -> Fraction:
        """Return a random function of it; calls of one `name` with equal arguments are one call."""
        call = Call(function, Fraction(self.top, self.bottom, self.scale), frozenset(self.along))
        return replace(variable(self.along), calls=_merged(self.calls, {name: call}))

    @property
    def plain(self) -> bool:
        """Whether nothing in it has been through exp."""
        return self.top.plain and self.bottom.plain

    def log(self) -> Fraction:
        """Return the logarithm, which is known by this."""
        return replace(self, logged=True, exact=False)

    @property
    def raised(self) -> Fraction:
        """What this is the logarithm of; any other exponent's power."""
        return replace(self, logged=False) if self.logged else self.exp()

    def total(self, coordinate: str, length: int) -> Fraction:
        """Return the sum along a coordinate of that extent; of logarithms, that of the product."""
        top, bottom = self.top, self.bottom
        if self.logged:
            top, bottom = top.to_the(length), bottom.to_the(length)
        elif coordinate in self.below:
            top, bottom = top * bottom.to_the(length - 1), bottom.to_the(length)
        calls = {
            name: replace(c, number=c.number * length) if coordinate in c.along else c
            for name, c in self.calls.items()
        }
        top = top if self.logged else top.summed(coordinate, length)
        return replace(self, top=top, bottom=bottom, calls=calls).at_one(coordinate)

    def at_one(self, coordinate: str) -> Fraction:
        """Return the value at one place along a coordinate."""
        along = {c: n for c, n in self.along.items() if c != coordinate}
        return self.moved(lambda coordinates: coordinates - {coordinate}, along)


def _over_one_scale(a: int, b: int) -> tuple[int, int, int]:
    """Return the least common multiple of two scales, and what it is of each."""
    scale = lcm(a, b)
    return scale, scale // a, scale // b


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


def mask(*args: Fraction) -> Fraction:
    """Return a truth value that depends on positions and lengths."""
    return number(1, {c: n for a in args for c, n in a.along.items()})


def where(condition: Fraction, a: Fraction, b: Fraction) -> Fraction:
    """Return a choice between two values, element by element."""
    if not a.top.count or not b.top.count:  # 0 has any denominator
        a = b = a if a.top.count else b
    scale, mine, theirs = _over_one_scale(a.scale, b.scale)
    top, along = a.top.times(mine).either(b.top.times(theirs)), frozenset(condition.along)
    if not top.plain:
        top = replace(top, varies=top.varies | along)
    joined = a.joined(b, top, a.bottom.either(b.bottom), scale)
    below = joined.below if a.bottom == b.bottom else joined.below | along
    return replace(joined, below=below, along={**condition.along, **joined.along})
