"""Normal form of abstract expressions, and when one can be part of another.

An abstract expression forgets indices (MIRAGE.md, section 1; Mirage paper, section 4.3). Its
axioms: addition and multiplication commute, associate and distribute; x/z + y/z = (x+y)/z,
x * (y/z) = (x*y)/z, (x/y)/z = x/(y*z); exp(x) * exp(y) = exp(x+y), sqrt(x) * sqrt(y) = sqrt(x*y);
summing along a dim is multiplication by a formal factor; 1 * x = x. Nothing cancels, no axiom opens
x / (y/z), and other functions are opaque. The normal form is a sum of products (polynomials.py).

`contains(target, part)` holds when some context of add, mul, div, sum and functions turns `part`
into the target. Between functions and denominators a context only adds, multiplies and divides:
it makes part * c / d + rest. So `part`, times one product, must be among the products of a place:
the target, or a place's exponent, radicand, denominator or function's argument. That is decided
exactly, but for quotients of very large sums: there `fallback` is asked, and without one the answer
is True, as nothing equivalent may be pruned. Tests check both decisions by other means (z3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import compress

from mirage_kernels.generator.meaning.polynomials import (
    EMPTY,
    ONE,
    ZERO,
    Polynomials,
    UndecidedError,
)

Atom = tuple[str, ...] | tuple[str, str, tuple[int, ...]]
Fallback = Callable[["Terms", int, int], bool]


@dataclass
class _Places:
    """Where parts of one target may stand, and what was found out about them."""

    contents: list[Counter[int]]  # the products of each place
    fits: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    contained: dict[int, bool] = field(default_factory=dict)


@dataclass
class Terms(Polynomials):
    """An interning table of terms; a term is a number, equal terms are one number."""

    fallback: Fallback | None = None  # whether (terms, target, part) is kept where undecided
    atoms: list[Atom] = field(default_factory=list)
    _atom_terms: dict[Atom, int] = field(default_factory=dict)
    _primes: list[int] = field(default_factory=list)
    _places: dict[int, _Places] = field(default_factory=dict)
    _counted: dict[int, Counter[str]] = field(default_factory=dict)

    @property
    def one(self) -> int:
        """Return the term of a product of nothing: 1 / x is div(one, x)."""
        return ONE

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

    def contains(self, target: int, part: int) -> bool:
        """Return whether `part` can be a sub-expression of something equal to `target`."""
        places = self._places.get(target)
        if places is None:
            contents = [Counter(self.table[p]) for p in self.positions(target)]
            places = self._places[target] = _Places(contents)
        found = places.contained.get(part)
        if found is None:
            try:
                found = self._stands(places, part)
            except UndecidedError:
                found = self.fallback is None or self.fallback(self, target, part)
            places.contained[part] = found
        return found

    def positions(self, target: int) -> list[int]:
        """Return the places of parts: target, exponents, radicands, denominators, arguments."""
        found: dict[int, None] = {}
        todo = [target]
        while todo:
            term = todo.pop()
            if term not in found and term != ZERO:
                found[term] = None
                for product in self.table[term]:
                    todo += self.products[product][1:]
                for atom in self.atoms_of(term):
                    todo += self.arguments(atom)
        return list(found)

    def atoms_of(self, term: int) -> list[Atom]:
        """Return the leaves and functions that a term's products multiply, each once."""
        return list(dict.fromkeys(a for p in self.table[term] for a in self.factors(p)))

    def occurrences(self, term: int) -> Counter[str]:
        """Count each input in the term written out as a sum of products.

        A context can only add to these counts, so values that are all still to be used can't count
        more of an input than the target does.
        """
        found = self._counted.get(term)
        if found is None:
            found = self._counted[term] = Counter()
            for product in self.table[term]:
                for atom in self.factors(product):
                    if atom[0] == "input":
                        found[str(atom[1])] += 1
                    for argument in self.arguments(atom):
                        found.update(self.occurrences(argument))
                for value in self.products[product][1:]:
                    found.update(self.occurrences(value))
        return found

    def _stands(self, places: _Places, part: int) -> bool:
        """Return whether a place holds the products of `part` times one product."""
        products = self.table[part]
        fits: list[tuple[int, int]] = []
        for product in products:
            fits = self._fits(places, product)
            if not fits:
                return False
        if len(products) == 1:
            return True
        counts = Counter(products).items()
        for place, factor in fits:
            content = places.contents[place]
            if all(content.get(self._join(p, factor), 0) >= n for p, n in counts):
                return True
        return False

    def _fits(self, places: _Places, product: int) -> list[tuple[int, int]]:
        """Return where a product stands: (place, the product that makes it one of the place's)."""
        found = places.fits.get(product)
        if found is None:
            found = []
            atoms = self.products[product][0]
            for place, content in enumerate(places.contents):
                for whole in content:
                    if self.products[whole][0] % atoms == 0:
                        factor = self._product_quotient(whole, product)
                        if factor is not None:
                            found.append((place, factor))
            places.fits[product] = found
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
        if atom not in self._atom_terms:
            if len(self.atoms) == len(self._primes):
                self._primes = primes_below(2 * self._primes[-1] if self._primes else 1024)
            prime = self._primes[len(self.atoms)]
            self._atom_terms[atom] = self._value([self._product((prime, *EMPTY[1:]))])
            self.atoms.append(atom)
        return self._atom_terms[atom]


def primes_below(limit: int) -> list[int]:
    """Return the primes below `limit`."""
    sieve = bytearray([1]) * limit
    sieve[:2] = bytes(2)
    for n in range(2, int(limit**0.5) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))
    return list(compress(range(limit), sieve))
