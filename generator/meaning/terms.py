"""Normal form of abstract expressions, and when one can be part of another.

An abstract expression forgets indices (MIRAGE.md, section 1; Mirage paper, section 4.3). Its
axioms: addition and multiplication commute, associate and distribute; x/z + y/z = (x+y)/z,
x * (y/z) = (x*y)/z, (x/y)/z = x/(y*z); exp(x) * exp(y) = exp(x+y), sqrt(x) * sqrt(y) = sqrt(x*y);
summing along a dim is multiplication by a formal factor; 1 * x = x. Nothing cancels, no axiom opens
x / (y/z), and other functions are opaque. So a product holds at most one exponential, one root and
one denominator, and every value is a sum of products in one way:

    atoms * exp(exponent) * sqrt(radicand) / denominator

where the exponent, radicand and denominator are values again. An atom (a leaf or a function) is a
prime and a product of atoms the product of their primes: whether one divides another is a single
remainder. Products and values are interned: equal ones are one number.

Values lie in a ring of polynomials without divisors of zero, so there is at most one quotient.
Long division finds it, given an order of products that multiplication keeps: the greatest product
of a multiple of d is then a multiple of the greatest product of d. Integers are in such an order.
It extends to values, compared by their products from the greatest down, as adding and multiplying
keep that order; so exponents, radicands and denominators decide between products of equal atoms.

`contains(target, part)` holds when some context of add, mul, div, sum and functions turns `part`
into the target. Between functions and denominators a context only adds, multiplies and divides:
it makes part * c / d + rest. So `part`, times one product, must be among the products of a place:
the target, or a place's exponent, radicand, denominator or function's argument. That is decided
exactly, but for quotients of very large sums: there the answer is True, as nothing equivalent may
be pruned. Tests check both decisions by other means (z3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from typing import ClassVar

Product = tuple[int, int, int, int]  # atoms; exponent, radicand and denominator by number
Sum = tuple[int, ...]  # products by number, sorted, each as often as it is added
Rank = tuple["int | Rank", ...]
Placement = tuple[int, int]  # a place of parts, by number; the product that a part is times there
Atom = tuple[str, ...] | tuple[str, str, tuple[int, ...]]

ZERO = 0  # the empty sum: no expression's value, stands for "no exponent"
ONE = 1
EMPTY: Product = (1, ZERO, ONE, ONE)


class UndecidedError(Exception):
    """A quotient that takes longer than it is worth; the caller keeps what it asked about."""


@dataclass
class Terms:
    """An interning table: a term is a number, equal terms are one; `table` holds their products."""

    one: ClassVar[int] = ONE  # the term of a product of nothing: 1 / x is div(one, x)
    largest: int = 1 << 14  # products of a sum that is still divided by a sum
    table: list[Sum] = field(default_factory=lambda: [(), (0,)])
    products: list[Product] = field(default_factory=lambda: [EMPTY])
    atoms: list[Atom] = field(default_factory=list)
    _numbers: dict[Sum, int] = field(default_factory=lambda: {(): ZERO, (0,): ONE})
    _product_numbers: dict[Product, int] = field(default_factory=lambda: {EMPTY: 0})
    _primes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        once: tuple[Callable[..., object], ...] = (
            *(self.add, self.mul, self.div, self.quotient, self.contains, self.occurrences),
            *(self._atom, self._join, self._rank, self._places, self._fits, self._placements),
            self._product_quotient,
        )
        for operation in once:  # the same question is answered once
            setattr(self, operation.__name__, cache(operation))

    def leaf(self, kind: str, *words: str) -> int:
        """Return the term of an input, constant, extent or summation factor."""
        return self._atom((kind, *words))

    def function(self, name: str, *args: int) -> int:
        """Return name(args...)."""
        if name == "exp":
            return self._value([self._product((1, args[0], ONE, ONE))])
        if name == "sqrt":
            return self._value([self._product((1, ZERO, args[0], ONE))])
        return self._atom(("fn", name, args))

    def add(self, a: int, b: int) -> int:
        """Return a + b."""
        return self._value((*self.table[a], *self.table[b]))

    def mul(self, a: int, b: int) -> int:
        """Return a * b."""
        if a == ONE or b == ONE:
            return b if a == ONE else a
        return self._value([self._join(x, y) for x in self.table[a] for y in self.table[b]])

    def div(self, a: int, b: int) -> int:
        """Return a / b, for which nothing is cancelled."""
        below = self._product((1, ZERO, ONE, b))
        return self._value([self._join(x, below) for x in self.table[a]])

    def quotient(self, whole: int, divisor: int) -> int | None:
        """Return q with divisor * q = whole by long division, None if there is none.

        Raises UndecidedError where the sum is larger than `largest`.
        """
        if divisor in (ONE, whole):
            return whole if divisor == ONE else ONE
        size, parts = len(self.table[whole]), len(self.table[divisor])
        if size % parts:  # x * y has as many products as x has, times as many as y has
            return None
        if parts > 1 and size > self.largest:
            raise UndecidedError
        counts, left = Counter(self.table[divisor]), Counter(self.table[whole])
        greatest = max(counts, key=self._rank)
        quotient: list[int] = []
        for product in (p for p in sorted(left, key=self._rank, reverse=True) if left[p]):
            times, rest = divmod(left[product], counts[greatest])
            factor = self._product_quotient(product, greatest)
            if rest or factor is None:
                return None
            for part, count in counts.items():
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
        exponents = Counter(self.table[exponent])
        exponents.subtract(self.table[exponent_out])
        if min(exponents.values(), default=0) < 0:
            return None
        exponent_left = self._value(list(exponents.elements()))
        radicand_left = self.quotient(radicand, radicand_out)
        if radicand_left is None:
            return None
        denominator_left = self.quotient(denominator, denominator_out)
        if denominator_left is None:
            return None
        return self._product((atoms // atoms_out, exponent_left, radicand_left, denominator_left))

    def _join(self, x: int, y: int) -> int:
        """Return the product of two products."""
        atoms, exponent, radicand, denominator = self.products[x]
        more_atoms, more_exponent, more_radicand, more_denominator = self.products[y]
        exponents = self.add(exponent, more_exponent)
        below = self.mul(denominator, more_denominator)
        return self._product(
            (atoms * more_atoms, exponents, self.mul(radicand, more_radicand), below)
        )

    def _rank(self, product: int) -> Rank:
        """Return what products are ordered by; multiplying by a product keeps the order.

        () stands for the least exponent, radicand or denominator: none.
        """
        atoms, exponent, radicand, denominator = self.products[product]
        values = (exponent, *(ZERO if v == ONE else v for v in (radicand, denominator)))
        ranks = (sorted(map(self._rank, self.table[v]), reverse=True) for v in values)
        return (atoms, *map(tuple, ranks))

    def contains(self, target: int, part: int) -> bool:
        """Return whether `part` can be a sub-expression of something equal to `target`.

        A place then holds the products of `part` times one product.
        """
        try:
            return any(True for _ in self._placed(target, part))
        except UndecidedError:
            return True

    def may_contain(self, target: int, op: str, a: int, b: int) -> bool:
        """Return whether `contains` may hold of a + b, a * b or a / b, which is not made for it.

        What stands somewhere times a product has its operands there: of a sum both times the same,
        of a product `a` times that and each product of `b`, of a quotient `a` times that over `b`.
        """
        if op == "mul" and len(self.table[a]) < len(self.table[b]):
            a, b = b, a
        of_a = self._placements(target, a)
        if of_a is None:
            return True
        if op == "add":
            of_b = self._placements(target, b)
            return of_b is None or not of_a.isdisjoint(of_b)
        by = (self._product((1, ZERO, ONE, b)),) if op == "div" else self.table[b]
        try:
            return any(
                left is not None and all((place, self._join(p, left)) in of_a for p in by[1:])
                for place, factor in of_a
                for left in (self._product_quotient(factor, by[0]),)
            )
        except UndecidedError:
            return True

    def _placements(self, target: int, part: int) -> frozenset[Placement] | None:
        """Return where a part stands in a target; None where telling takes too long."""
        try:
            return frozenset(self._placed(target, part))
        except UndecidedError:
            return None

    def _placed(self, target: int, part: int) -> Iterator[Placement]:
        """Yield where a part stands, by the product that fits in the fewest places."""
        counts, fits = Counter(self.table[part]), list[Placement]()
        for product in counts:
            own = self._fits(target, product)
            if not own:
                return
            if not fits or len(own) < len(fits):
                fits = own
        join, places = self._join, self._places(target)
        for place, factor in fits:
            content = places[place]
            if all(content.get(join(p, factor), 0) >= n for p, n in counts.items()):
                yield place, factor

    def _fits(self, target: int, product: int) -> list[Placement]:
        """Return where a product stands."""
        atoms = self.products[product][0]
        found = []
        for place, content in enumerate(self._places(target)):
            for whole in content:
                if self.products[whole][0] % atoms == 0:
                    factor = self._product_quotient(whole, product)
                    if factor is not None:
                        found.append((place, factor))
        return found

    def _places(self, target: int) -> list[Counter[int]]:
        """Return the products of every place where parts of a target may stand."""
        return [Counter(self.table[place]) for place in self.positions(target)]

    def positions(self, target: int) -> list[int]:
        """Return the places of parts: target, exponents, radicands, denominators, arguments."""
        found, todo = dict[int, None](), [target]
        while todo:
            term = todo.pop()
            if term not in found and term != ZERO:
                found[term] = None
                for product in self.table[term]:
                    todo += self.products[product][1:]
                    todo += (a for atom in self.factors(product) for a in self.arguments(atom))
        return list(found)

    def occurrences(self, term: int) -> Counter[str]:
        """Count each input in the term written out as a sum of products.

        A context can only add to these counts, so values that are all still to be used can't count
        more of an input than the target does.
        """
        found = Counter[str]()
        for product in self.table[term]:
            inner = [v for v in self.products[product][1:] if v not in (ZERO, ONE)]
            for atom in self.factors(product):
                if atom[0] == "input":
                    found[str(atom[1])] += 1
                inner += self.arguments(atom)
            for value in inner:
                found.update(self.occurrences(value))
        return found

    def factors(self, product: int) -> Iterator[Atom]:
        """Yield the atoms of a product, each as often as it is multiplied."""
        left = self.products[product][0]
        for prime, atom in zip(self._primes, self.atoms, strict=False):
            while left % prime == 0:
                left //= prime
                yield atom
            if left == 1:
                return

    def arguments(self, atom: Atom) -> tuple[int, ...]:
        """Return the terms an atom is a function of."""
        return tuple(int(a) for a in atom[2]) if atom[0] == "fn" else ()

    def _atom(self, atom: Atom) -> int:
        if len(self.atoms) == len(self._primes):
            self._primes = primes_below(2 * self._primes[-1] if self._primes else 1024)
        self.atoms.append(atom)
        prime = self._primes[len(self.atoms) - 1]
        return self._value([self._product((prime, *EMPTY[1:]))])

    def _value(self, products: Sequence[int]) -> int:
        key = tuple(sorted(products))
        found = self._numbers.setdefault(key, len(self.table))
        if found == len(self.table):
            self.table.append(key)
        return found

    def _product(self, product: Product) -> int:
        found = self._product_numbers.setdefault(product, len(self.products))
        if found == len(self.products):
            self.products.append(product)
        return found


def primes_below(limit: int) -> list[int]:
    """Return the primes below `limit`."""
    sieve = bytearray([1]) * limit
    sieve[:2] = bytes(2)
    for n in range(2, int(limit**0.5) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))
    return list(compress(range(limit), sieve))
