"""Normal form of abstract expressions, and when one can be part of another.

An abstract expression forgets indices (MIRAGE.md, section 1; Mirage paper, section 4.3). Its
axioms make it a commutative semiring with division and without cancellation: products distribute
over sums, x/z + y/z = (x+y)/z, (x/y)/z = x/(y*z), and summing along a dim is multiplication by a
formal factor. So every expression has a normal form, a sum of fractions

    term = { denominator: numerator },   both sums of products of atoms,

where atoms are inputs, constants, summation factors and functions of terms, with
exp(x)*exp(y) = exp(x+y) and sqrt(x)*sqrt(y) = sqrt(x*y) already applied.

`contains(target, part)` holds when some context of add, mul, div, sum and functions turns `part`
into the target. Contexts can only multiply (c), divide (d) and add, so `part` must appear as
part * c / d inside the target, inside one of its denominators or inside a function's argument.
Where the question is not decided the answer is True: nothing equivalent is ever pruned.

Products are tuples of sorted atom numbers, sums tuples of sorted products; terms are interned, so
equal terms are identical numbers and every operation is computed once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

Product = tuple[int, ...]
Sum = tuple[Product, ...]
Fractions = tuple[tuple[Sum, Sum], ...]  # (denominator, numerator), sorted by denominator
Atom = tuple[str, ...] | tuple[str, str, tuple[int, ...]]

ONE: Sum = ((),)
_MERGING = ("exp", "sqrt")


class UndecidedError(Exception):
    """A containment that the normal form can't decide; the caller keeps the candidate."""


@dataclass
class Terms:
    """An interning table of terms; a term is a number, its fractions are `table[number]`."""

    table: list[Fractions] = field(default_factory=list)
    numbers: dict[Fractions, int] = field(default_factory=dict)
    atoms: list[Atom] = field(default_factory=list)
    atom_numbers: dict[Atom, int] = field(default_factory=dict)
    memo: dict[tuple[str, int, int], int] = field(default_factory=dict)
    parts: dict[tuple[int, int], bool] = field(default_factory=dict)

    def leaf(self, kind: str, *words: str) -> int:
        """Return the term of an input, constant, extent or summation factor."""
        return self._term(((ONE, ((self._atom((kind, *words)),),)),))

    def function(self, name: str, *args: int) -> int:
        """Return name(args...) as an atom."""
        return self._term(((ONE, ((self._atom(("fn", name, args)),),)),))

    def add(self, a: int, b: int) -> int:
        """Return a + b."""
        return self._memoised("add", min(a, b), max(a, b))

    def mul(self, a: int, b: int) -> int:
        """Return a * b."""
        return self._memoised("mul", min(a, b), max(a, b))

    def div(self, a: int, b: int) -> int:
        """Return a / b."""
        return self._memoised("div", a, b)

    def contains(self, target: int, part: int) -> bool:
        """Return whether `part` can be a sub-expression of something equal to `target`."""
        key = (target, part)
        if key not in self.parts:
            try:
                found = any(self._fits(p, part) for p in self.positions(target))
            except UndecidedError:
                found = True
            self.parts[key] = found
        return self.parts[key]

    def positions(self, target: int) -> list[int]:
        """Return the terms inside which a part may stand: target, denominators, arguments."""
        found: dict[int, None] = {}
        todo = [target]
        while todo:
            term = todo.pop()
            if term in found:
                continue
            found[term] = None
            for denominator, numerator in self.table[term]:
                if denominator != ONE:
                    todo.append(self._term(((ONE, denominator),)))
                for atom in {a for p in (*numerator, *denominator) for a in p}:
                    todo.extend(self._arguments(atom))
        return list(found)

    def occurrences(self, term: int) -> Counter[str]:
        """Count each input in the term written out as a sum of fractions of products.

        A context can only add to these counts (sharing a denominator is undone by writing out), so
        values that are all still to be used can't count more of an input than the target does.
        """
        total: Counter[str] = Counter()
        for denominator, numerator in self.table[term]:
            below = self._count(denominator)
            for product in numerator:
                total.update(self._count((product,)))
                total.update(below)
        return total

    def _count(self, terms: Sum) -> Counter[str]:
        total: Counter[str] = Counter()
        for atom in (a for product in terms for a in product):
            if self.atoms[atom][0] == "input":
                total[str(self.atoms[atom][1])] += 1
            for argument in self._arguments(atom):
                total.update(self.occurrences(argument))
        return total

    def _arguments(self, atom: int) -> tuple[int, ...]:
        what = self.atoms[atom]
        return tuple(int(a) for a in what[2]) if what[0] == "fn" else ()

    def _atom(self, what: Atom) -> int:
        if what not in self.atom_numbers:
            self.atom_numbers[what] = len(self.atoms)
            self.atoms.append(what)
        return self.atom_numbers[what]

    def _term(self, fractions: Fractions) -> int:
        if fractions not in self.numbers:
            self.numbers[fractions] = len(self.table)
            self.table.append(fractions)
        return self.numbers[fractions]

    def _memoised(self, op: str, a: int, b: int) -> int:
        key = (op, a, b)
        if key not in self.memo:
            compute = {"add": self._add, "mul": self._mul, "div": self._div}[op]
            self.memo[key] = self._term(_sorted(compute(a, b)))
        return self.memo[key]

    def _add(self, a: int, b: int) -> dict[Sum, list[Product]]:
        total: dict[Sum, list[Product]] = {}
        for denominator, numerator in (*self.table[a], *self.table[b]):
            total.setdefault(denominator, []).extend(numerator)
        return total

    def _mul(self, a: int, b: int) -> dict[Sum, list[Product]]:
        total: dict[Sum, list[Product]] = {}
        for below_a, above_a in self.table[a]:
            for below_b, above_b in self.table[b]:
                denominator = self._times(below_a, below_b)
                total.setdefault(denominator, []).extend(self._times(above_a, above_b))
        return total

    def _div(self, a: int, b: int) -> dict[Sum, list[Product]]:
        below = self.table[b]
        if len(below) == 1 and below[0][0] == ONE:
            divisor = below[0][1]
        else:  # no axiom opens x / (y / z): the fraction below is an atom
            divisor = ((self._atom(("fn", "fraction", (b,))),),)
        total: dict[Sum, list[Product]] = {}
        for denominator, numerator in self.table[a]:
            total.setdefault(self._times(denominator, divisor), []).extend(numerator)
        return total

    def _times(self, a: Sum, b: Sum) -> Sum:
        if a == ONE:
            return b
        if b == ONE:
            return a
        return tuple(sorted(self._product(x, y) for x in a for y in b))

    def _product(self, a: Product, b: Product) -> Product:
        atoms = sorted(a + b)
        for name in _MERGING:
            same = [i for i in atoms if self.atoms[i][:2] == ("fn", name)]
            if len(same) > 1:
                join = self.add if name == "exp" else self.mul
                argument = self._arguments(same[0])[0]
                for i in same[1:]:
                    argument = join(argument, self._arguments(i)[0])
                rest = [i for i in atoms if i not in same]
                atoms = sorted([*rest, self._atom(("fn", name, (argument,)))])
        return tuple(atoms)

    def _fits(self, place: int, part: int) -> bool:
        """Return whether part * c / d + rest = place for some c, d and rest."""
        spots = dict(self.table[place])
        below, above = self.table[part][0]
        for denominator, numerator in self.table[place]:
            divisor = self._quotient(denominator, below)
            if divisor is None:
                continue
            for product in numerator:
                factor = self._product_quotient(product, above[0])
                if factor is not None and self._inside(spots, part, factor, divisor):
                    return True
        return False

    def _inside(self, spots: dict[Sum, Sum], part: int, factor: Product, divisor: Sum) -> bool:
        for below, above in self.table[part]:
            room = Counter(spots.get(self._times(below, divisor), ()))
            room.subtract(self._product(p, factor) for p in above)
            if min(room.values(), default=0) < 0:
                return False
        return True

    def _quotient(self, whole: Sum, divisor: Sum) -> Sum | None:
        """Return q with divisor * q = whole, None if there is none."""
        if divisor == ONE:
            return whole
        if divisor == whole:
            return ONE
        if len(whole) % len(divisor):
            return None
        if len(whole) > len(divisor) > 1:
            raise UndecidedError
        if len(divisor) == 1:
            quotients = [self._product_quotient(w, divisor[0]) for w in whole]
            if any(q is None for q in quotients):
                return None
            return tuple(sorted(q for q in quotients if q is not None))
        for product in whole:  # multiplying by the factor may have changed the order of the sum
            factor = self._product_quotient(product, divisor[0])
            if factor is not None and self._times(divisor, (factor,)) == whole:
                return (factor,)
        return None

    def _product_quotient(self, whole: Product, divisor: Product) -> Product | None:
        """Return what is left of a product when a factor is taken out, None if it is no factor."""
        left = Counter(whole)
        left.subtract(divisor)
        missing = [a for a, n in left.items() if n < 0]
        if not missing:
            return tuple(sorted(left.elements()))
        return self._merged_quotient(whole, divisor, missing)

    def _merged_quotient(
        self, whole: Product, divisor: Product, missing: list[int]
    ) -> Product | None:
        """Take exp(x) out of exp(x + y), which leaves exp(y), or sqrt(x) out of sqrt(x * y)."""
        name = str(self.atoms[missing[0]][1])
        own = [a for a in whole if self.atoms[a][:2] == ("fn", name)]
        if len(missing) > 1:
            if len({self.atoms[a][:2] for a in missing} - {("fn", m) for m in _MERGING}):
                return None
            raise UndecidedError
        if name not in _MERGING or not own or self.atoms[missing[0]][0] != "fn":
            return None
        part_of = self._difference if name == "exp" else self._term_quotient
        rest = part_of(self._arguments(own[0])[0], self._arguments(missing[0])[0])
        if rest is None:
            return None
        left = Counter(whole)
        left.subtract(divisor)
        for atom, more in ((missing[0], 1), (own[0], -1), (self._atom(("fn", name, (rest,))), 1)):
            left[atom] += more  # what is left may be the factor that was missing: f(x) * f(x)
        return tuple(sorted(left.elements())) if min(left.values()) >= 0 else None

    def _term_quotient(self, whole: int, divisor: int) -> int | None:
        """Return c with divisor * c = whole, None if there is none."""
        ((below, above), *more) = self.table[divisor]
        if more or len(above) > 1:
            size = sum(len(n) for _, n in self.table[whole])
            parts = sum(len(n) for _, n in self.table[divisor])
            if size % parts:
                return None
            raise UndecidedError
        left: dict[Sum, list[Product]] = {}
        for denominator, numerator in self.table[whole]:
            rest = self._quotient(denominator, below)
            products = [self._product_quotient(p, above[0]) for p in numerator]
            if rest is None or None in products:
                return None
            left[rest] = [p for p in products if p is not None]
        return self._term(_sorted(left))

    def _difference(self, whole: int, part: int) -> int | None:
        left = {d: Counter(n) for d, n in self.table[whole]}
        for denominator, numerator in self.table[part]:
            room = left.get(denominator, Counter())
            room.subtract(numerator)
            if min(room.values()) < 0:
                return None
        return self._term(_sorted({d: list(n.elements()) for d, n in left.items() if +n}))


def _sorted(fractions: dict[Sum, list[Product]]) -> Fractions:
    return tuple(sorted((d, tuple(sorted(n))) for d, n in fractions.items()))
