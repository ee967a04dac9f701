"""Sums of products with exact division: what abstract expressions are in normal form.

By their axioms (terms.py) abstract expressions are a commutative semiring: no zero, no subtraction,
nothing cancels. Three functions turn one of its operations into multiplication:

    exp(x) * exp(y) = exp(x + y)    sqrt(x) * sqrt(y) = sqrt(x * y)    1/x * 1/y = 1/(x * y)

So a product holds at most one of each, and every value is a sum of products in one way:

    atoms * exp(exponent) * sqrt(radicand) / denominator

where the exponent, radicand and denominator are values again. An atom is a prime and a product of
atoms the product of their primes: whether one divides another is a single remainder.

Values lie in a ring of polynomials without divisors of zero, so there is at most one quotient.
Long division finds it, given an order of products that multiplication keeps: the greatest product
of a multiple of d is then a multiple of the greatest product of d. Integers are in such an order.
It extends to values, compared by their products from the greatest down, as adding and multiplying
keep that order; so exponents, radicands and denominators decide between products of equal atoms.

Products and values are interned: equal ones are one number, every operation is done once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

Product = tuple[int, int, int, int]  # atoms; exponent, radicand and denominator by number
Sum = tuple[int, ...]  # products by number, sorted, each as often as it is added
Rank = tuple["int | Rank", ...]

ZERO = 0  # the empty sum: no expression's value, stands for "no exponent"
ONE = 1
EMPTY: Product = (1, ZERO, ONE, ONE)


class UndecidedError(Exception):
    """A quotient that takes longer than it is worth; the caller keeps what it asked about."""


@dataclass
class Polynomials:
    """An interning table of values; a value is a number, its products are `table[number]`."""

    largest: int = 1 << 14  # products of a sum that is still divided by a sum
    table: list[Sum] = field(default_factory=lambda: [(), (0,)])
    products: list[Product] = field(default_factory=lambda: [EMPTY])
    _numbers: dict[Sum, int] = field(default_factory=lambda: {(): ZERO, (0,): ONE})
    _product_numbers: dict[Product, int] = field(default_factory=lambda: {EMPTY: 0})
    _added: dict[tuple[int, int], int] = field(default_factory=dict)
    _multiplied: dict[tuple[int, int], int] = field(default_factory=dict)
    _divided: dict[tuple[int, int], int] = field(default_factory=dict)
    _quotients: dict[tuple[int, int], int | None] = field(default_factory=dict)
    _joined: dict[tuple[int, int], int] = field(default_factory=dict)
    _ranks: dict[int, Rank] = field(default_factory=lambda: {ZERO: ()})

    def add(self, a: int, b: int) -> int:
        """Return a + b."""
        key = (a, b) if a < b else (b, a)
        found = self._added.get(key)
        if found is None:
            found = self._added[key] = self._value((*self.table[a], *self.table[b]))
        return found

    def mul(self, a: int, b: int) -> int:
        """Return a * b."""
        if a == ONE or b == ONE:
            return b if a == ONE else a
        key = (a, b) if a < b else (b, a)
        found = self._multiplied.get(key)
        if found is None:
            above, others = self.table[a], self.table[b]
            found = self._value([self._join(x, y) for x in above for y in others])
            self._multiplied[key] = found
        return found

    def div(self, a: int, b: int) -> int:
        """Return a / b, for which nothing is cancelled."""
        found = self._divided.get((a, b))
        if found is None:
            below = self._product((1, ZERO, ONE, b))
            found = self._value([self._join(x, below) for x in self.table[a]])
            self._divided[a, b] = found
        return found

    def difference(self, whole: int, part: int) -> int | None:
        """Return r with part + r = whole (`ZERO` if they are equal), None if there is none."""
        if part == ZERO:
            return whole
        left = Counter(self.table[whole])
        left.subtract(self.table[part])
        if min(left.values(), default=-1) < 0:
            return None
        return self._value(list(left.elements()))

    def quotient(self, whole: int, divisor: int) -> int | None:
        """Return q with divisor * q = whole, None if there is none.

        Raises UndecidedError where the sum is larger than `largest`.
        """
        if divisor == ONE:
            return whole
        if divisor == whole:
            return ONE
        key = (whole, divisor)
        if key not in self._quotients:
            size, parts = len(self.table[whole]), len(self.table[divisor])
            # x * y has as many products as x has, times as many as y has
            possible = size % parts == 0
            if possible and parts > 1 and size > self.largest:
                raise UndecidedError
            self._quotients[key] = self._long_division(whole, divisor) if possible else None
        return self._quotients[key]

    def _long_division(self, whole: int, divisor: int) -> int | None:
        parts = Counter(self.table[divisor])
        greatest = max(parts, key=self._rank)
        left = Counter(self.table[whole])
        quotient: list[int] = []
        for product in sorted(left, key=self._rank, reverse=True):
            if not left[product]:
                continue
            times, rest = divmod(left[product], parts[greatest])
            factor = self._product_quotient(product, greatest)
            if rest or factor is None:
                return None
            for part, count in parts.items():
                reached = self._join(part, factor)
                left[reached] -= count * times
                if left[reached] < 0:
                    return None
            quotient += [factor] * times
        return self._value(quotient)

    def _product_quotient(self, whole: int, divisor: int) -> int | None:
        """Return the product that makes `divisor` into `whole`, None if there is none."""
        atoms, exponent, radicand, denominator = self.products[whole]
        atoms_out, exponent_out, radicand_out, denominator_out = self.products[divisor]
        if atoms % atoms_out:
            return None
        exponent_left = self.difference(exponent, exponent_out)
        if exponent_left is None:
            return None
        radicand_left = self.quotient(radicand, radicand_out)
        if radicand_left is None:
            return None
        denominator_left = self.quotient(denominator, denominator_out)
        if denominator_left is None:
            return None
        return self._product((atoms // atoms_out, exponent_left, radicand_left, denominator_left))

    def _join(self, x: int, y: int) -> int:
        """Return the product of two products."""
        key = (x, y) if x < y else (y, x)
        found = self._joined.get(key)
        if found is None:
            atoms, exponent, radicand, denominator = self.products[x]
            more_atoms, more_exponent, more_radicand, more_denominator = self.products[y]
            if exponent and more_exponent:
                exponent = self.add(exponent, more_exponent)
            found = self._product(
                (
                    atoms * more_atoms,
                    exponent or more_exponent,
                    self.mul(radicand, more_radicand),
                    self.mul(denominator, more_denominator),
                )
            )
            self._joined[key] = found
        return found

    def _rank(self, product: int) -> Rank:
        """Return what products are ordered by; multiplying by a product keeps the order.

        () stands for the least exponent, radicand or denominator: none.
        """
        atoms, exponent, radicand, denominator = self.products[product]
        return (
            atoms,
            self._value_rank(exponent),
            () if radicand == ONE else self._value_rank(radicand),
            () if denominator == ONE else self._value_rank(denominator),
        )

    def _value_rank(self, value: int) -> Rank:
        if value not in self._ranks:
            self._ranks[value] = tuple(sorted(map(self._rank, self.table[value]), reverse=True))
        return self._ranks[value]

    def _value(self, products: Sequence[int]) -> int:
        key = tuple(sorted(products))
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.table)
            self.table.append(key)
        return found

    def _product(self, product: Product) -> int:
        found = self._product_numbers.get(product)
        if found is None:
            found = self._product_numbers[product] = len(self.products)
            self.products.append(product)
        return found
