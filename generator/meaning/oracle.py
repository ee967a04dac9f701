"""z3's opinion on abstract expressions: asked where the normal form cannot decide (terms.py).

A part is refused only with a certificate: an interpretation that obeys all axioms of abstract
expressions and measures more in the part than in the whole. Values are dual numbers v + s*e, with
e*e = 0, over a semiring: v is the value, s the slope. Division by y is multiplication by a power of
y and a square root is another power, so that nothing cancels; exp(v + s*e) = 1 + (alpha*v +
beta*s)*e; any other function is a polynomial. Two semirings:
* weights: whole numbers from 1 on;
* tropical: max for addition and + for multiplication, on pairs of reals whose sum is not negative,
  which z3 finds. The two may measure opposite directions: how far apart the products of a sum are.
In both, a sub-expression's measure is at most that of the whole. A measure is the slope (of a pair
the sum of both) and, of weights, the value where the target has no exp.

Answers depend on the question alone: a fresh z3 context each, work bounded by z3's own count. z3
takes about a second to import; that happens at the first question.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from mirage_kernels.generator.meaning.terms import ONE, ZERO, Atom, Terms

if TYPE_CHECKING:
    import z3

Number: TypeAlias = "int | z3.ArithRef"
Vector = tuple[Number, ...]

WORK = 100_000  # z3's resource limit for one question
LARGEST = 2_000  # products of a question that `keeps` asks
HEAVY = 8  # leaves that are tried with a weight above the others'


@dataclass(frozen=True)
class Dual:
    """value + slope * e; None is the slope of one, the semiring's zero."""

    value: Vector
    slope: Vector | None


@dataclass
class Valuation:
    """An interpretation: a semiring with its one, and which powers 1/x and sqrt(x) are.

    `choose` returns a new parameter: a "value", which is at least one, a "slope", or a "mix", which
    is alpha.
    """

    plus: Callable[[Number, Number], Number]
    times: Callable[[Number, Number], Number]
    unit: Vector
    choose: Callable[[str], Vector]
    inverse: int
    root: int
    parameters: dict[str, Vector] = field(default_factory=dict)
    _known: dict[int, Dual] = field(default_factory=dict)

    def of(self, terms: Terms, term: int) -> Dual:
        """Return the value of a term; all terms must be of one table."""
        if term not in self._known:
            products = [self._product(terms, p) for p in terms.table[term]]
            self._known[term] = reduce(self.sum, products)
        return self._known[term]

    def _product(self, terms: Terms, product: int) -> Dual:
        _, exponent, radicand, denominator = terms.products[product]
        factors = [self._atom(terms, atom) for atom in terms.factors(product)]
        if exponent != ZERO:
            factors.append(self.exp(self.of(terms, exponent)))
        if radicand != ONE:
            factors.append(self.power(self.of(terms, radicand), self.root))
        if denominator != ONE:
            factors.append(self.power(self.of(terms, denominator), self.inverse))
        return reduce(self.product, factors) if factors else Dual(self.unit, None)

    def _atom(self, terms: Terms, atom: Atom) -> Dual:
        args = [self.of(terms, a) for a in terms.arguments(atom)]
        return self.function(str(atom[1]), *args) if args else self.number(" ".join(map(str, atom)))

    def number(self, name: str) -> Dual:
        """Return a number of its own, by name."""
        return Dual(self._parameter(name), self._parameter(name, "slope"))

    def _parameter(self, name: str, kind: str = "value") -> Vector:
        key = f"{kind} {name}"
        if key not in self.parameters:
            self.parameters[key] = self.choose(kind)
        return self.parameters[key]

    def sum(self, x: Dual, y: Dual) -> Dual:
        """Return x + y."""
        return Dual(tuple(map(self.plus, x.value, y.value)), self._slopes(x.slope, y.slope))

    def _slopes(self, x: Vector | None, y: Vector | None) -> Vector | None:
        return tuple(map(self.plus, x, y)) if x and y else x or y

    def product(self, x: Dual, y: Dual) -> Dual:
        """Return x * y."""
        left = tuple(map(self.times, x.value, y.slope)) if y.slope else None
        right = tuple(map(self.times, y.value, x.slope)) if x.slope else None
        return Dual(tuple(map(self.times, x.value, y.value)), self._slopes(left, right))

    def power(self, x: Dual, exponent: int) -> Dual:
        """Return x * x * ... * x."""
        return reduce(self.product, [x] * exponent)

    def exp(self, x: Dual) -> Dual:
        """Return exp(x), which turns sums into products."""
        mixed = tuple(map(self.times, self._parameter("alpha", "mix"), x.value))
        slope = tuple(map(self.times, self._parameter("beta"), x.slope)) if x.slope else None
        return Dual(self.unit, self._slopes(mixed, slope))

    def function(self, name: str, *args: Dual) -> Dual:
        """Return f(x, y, ...) = c + cx * x * x + cy * y * y + ..., with cx = cy in max."""
        result = self.number(name)
        for i, arg in enumerate(args):
            weight = self.number(f"{name} of" if name == "max" else f"{name} of {i}")
            result = self.sum(result, self.product(weight, self.power(arg, 2)))
        return result


Valued = Callable[[Valuation], tuple[Dual, Dual]]  # a target and what may be a part of it


def keeps(terms: Terms, target: int, part: int) -> bool:
    """Return whether there is no certificate that `part` is none of `target`: a Terms' fallback."""
    places = {p: None for term in (target, part) for p in terms.positions(term)}
    if sum(len(terms.table[p]) for p in places) > LARGEST:
        return True
    has_exp = any(terms.products[q][1] != ZERO for p in places for q in terms.table[p])
    return not any(separations(lambda v: (v.of(terms, target), v.of(terms, part)), has_exp=has_exp))


def separations(valued: Valued, *, has_exp: bool) -> Iterator[bool]:
    """Yield for each kind of certificate that a part is none of a target whether there is one."""

    def weighed(at: int, inverse: int, root: int) -> bool:
        whole, part = valued(weights(at, inverse, root))
        steeper = bool(whole.slope and part.slope and part.slope > whole.slope)
        return steeper or (not has_exp and part.value > whole.value)

    yield _tropical(valued, inverse=3, root=2)
    powers = ((1, 1), (2, 1), (1, 2))
    yield any(weighed(at, *power) for power in powers for at in range(HEAVY + 1))
    yield _tropical(valued, inverse=1, root=2)


def weights(at: int, inverse: int, root: int) -> Valuation:
    """Return whole numbers from 1 on: all are 1 but the value made `at` some place; alpha is 0."""
    places = count()

    def choose(kind: str) -> Vector:
        if kind == "mix":
            return (0,)
        return (4,) if kind == "value" and next(places) == at else (1,)

    return Valuation(operator.add, operator.mul, (1,), choose, inverse, root)


def _tropical(valued: Valued, *, inverse: int, root: int) -> bool:
    import z3

    solver = new_solver()
    zero, numbers = z3.RealVal(0, solver.ctx), count()

    def choose(kind: str) -> Vector:
        unknowns = tuple(z3.Real(f"u{next(numbers)}", solver.ctx) for _ in range(2))
        if kind == "value":
            solver.add(unknowns[0] + unknowns[1] >= 0)
        return unknowns

    def greater(x: Number, y: Number) -> Number:
        return z3.If(x >= y, x, y)

    valuation = Valuation(greater, operator.add, (zero, zero), choose, inverse, root)
    whole, part = valued(valuation)
    if not (whole.slope and part.slope):
        return False
    solver.add(part.slope[0] + part.slope[1] > whole.slope[0] + whole.slope[1])
    return str(solver.check()) == "sat"


def new_solver() -> z3.Solver:
    """Return a solver in a context of its own that stops after `WORK`."""
    import z3

    solver = z3.SimpleSolver(ctx=z3.Context())
    solver.set("auto_config", False)
    solver.set("mbqi", False)  # no models of quantified axioms: only instances of them
    solver.set("qi.eager_threshold", 100.0)
    solver.set("rlimit", WORK)
    return solver
