"""Exponential sums: how large the values of a program are, as fractions of sums c_j * w^E_j.

A value mod p is a quotient of such sums: the coefficients c_j are polynomials in the random
elements mod p, the exponents E_j quotients of polynomials in those mod q, and w is a random element
of order q. What has not been through exp is one term with exponent 0. The algebra below bounds what
arithmetic makes of them: degrees, heights (sums of absolute coefficients), numbers of terms.
`vanishing` says how likely such a sum is 0 at a random point although it is not the zero sum;
docs/verification.md derives it. Roots of sparse polynomials over a finite field: Canetti et al.
(2000), Kelley (2016).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

Coordinates = frozenset[str]

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
        scale = lcm(self.scale, other.scale)
        mine = self.top.times(scale // self.scale) * other.bottom
        theirs = other.top.times(scale // other.scale) * self.bottom
        return Ratio(mine + theirs, self.bottom * other.bottom, scale)

    def either(self, other: Ratio) -> Ratio:
        """Return the size of what may be one or the other."""
        scale = lcm(self.scale, other.scale)
        mine, theirs = (r.top.times(scale // r.scale) for r in (self, other))
        return Ratio(mine.either(theirs), self.bottom.either(other.bottom), scale)


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
        most = self.most * other.most
        tied = self.tied if other.tied is None else other.tied
        if self.tied is not None and other.tied is not None:
            most, tied = count, frozenset()  # v and w^a v + w^b u make two terms with u v
        return Terms(
            self.coefficient * other.coefficient,
            count,
            self.exponent + other.exponent,
            self.varies | other.varies,
            min(most, count),
            tied,
        )

    def __add__(self, other: Terms) -> Terms:
        plain = self.plain and other.plain
        count = min(self.count + other.count, 1 if plain else BEYOND)
        return Terms(
            self.coefficient + other.coefficient,
            count,
            self.exponent.either(other.exponent),
            self.varies | other.varies,
            min(self.most + other.most, count),
            None if self.tied is None and other.tied is None else frozenset(),
        )

    def either(self, other: Terms) -> Terms:
        """Return the size of what may be one or the other, element by element."""
        return Terms(
            self.coefficient.either(other.coefficient),
            max(self.count, other.count),
            self.exponent.either(other.exponent),
            self.varies | other.varies,
            max(self.most, other.most),
            _tied_either(self, other),
        )

    def times(self, factor: int) -> Terms:
        """Return the size of the sum times a whole number."""
        return replace(self, coefficient=self.coefficient.times(factor))

    def summed(self, coordinate: str, length: int) -> Terms:
        """Return the size of the sum along a coordinate of that extent."""
        repeated = length if coordinate in self.varies else 1
        count = min(self.count * repeated, BEYOND)
        apart = self.tied is not None and coordinate in self.tied
        return replace(
            self.without(coordinate),
            coefficient=self.coefficient.times(length),
            count=count,
            most=self.most if apart else min(self.most * repeated, count),
        )

    def without(self, coordinate: str) -> Terms:
        """Return the same terms at one place along a coordinate."""
        tied = None if self.tied is None else self.tied - {coordinate}
        return replace(self, varies=self.varies - {coordinate}, tied=tied)

    def to_the(self, power: int) -> Terms:
        """Return the size of the product of so many sums like this one."""
        result = Terms()
        square = self
        while power:
            if power & 1:
                result = result * square
            square, power = square * square, power >> 1
        return result


UNIT = Terms()


def _tied_either(a: Terms, b: Terms) -> Coordinates | None:
    """Return `tied` of what may be one or the other; 0 has no monomials that could meet."""
    if not a.count or (a.tied is None and b.tied is None):
        return b.tied
    return a.tied if not b.count else frozenset()


def vanishing(terms: Terms, p: int) -> float:
    """Return how likely a sum of this size, not the zero sum, is 0 at a random point, at most.

    1 where a coefficient may be a multiple of p, or a difference of exponents one of q.
    """
    q, k = (p - 1) // 2, max(1, min(terms.count, terms.most))
    apart = (terms.exponent + terms.exponent).top  # of a difference of two exponents
    if terms.coefficient.height >= p or (k > 1 and apart.height >= q):
        return 1.0
    collisions = (k - 1) * apart.degree / q
    return min(1.0, terms.coefficient.degree / p + collisions + _roots(k, q) / (q - 1))


def _roots(k: int, q: int) -> int:
    """Return for how many elements of order q a sum of k powers of it can be 0."""
    if k <= 2:
        return k - 1
    return min(q - 1, 2 * int(q * (q - 1) ** (-1 / (k - 1)) + 1e-6))
