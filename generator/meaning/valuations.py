"""Interpretations of abstract expressions in numbers, written in SMT-LIB for z3.

Every interpretation here obeys all axioms of abstract expressions (terms.py). Values are dual
numbers v + s*e, with e*e = 0, over a semiring: v is the value, s the slope. Division by y is
multiplication by a power of y and a square root is another power, so that nothing cancels;
exp(v + s*e) = 1 + (alpha*v + beta*s)*e; any other function is a polynomial. Two semirings:
* numbers: reals from 1 on, at values that are given, for z3 to calculate with;
* tropical: max for addition and + for multiplication, on pairs of reals whose sum is not negative,
  which z3 finds.
In both, a sub-expression's measure is at most that of the whole: a part with a greater measure is
none. A measure is the slope (of a pair the sum of both) and, of numbers, the value where the
target has no exp.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from mirage_kernels.generator.meaning.expressions import Expression

Vector = tuple[str, ...]  # of SMT-LIB terms


@dataclass(frozen=True)
class Dual:
    """value + slope * e; None is the slope of one, the semiring's zero."""

    value: Vector
    slope: Vector | None


@dataclass
class Script:
    """An SMT-LIB script under construction; terms are named where they are made."""

    lines: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def define(self, body: str) -> str:
        """Name a term."""
        name = f"t{next(self.numbers)}"
        self.lines.append(f"(define-fun {name} () Real {body})")
        return name

    def declare(self) -> str:
        """Name an unknown."""
        name = f"u{next(self.numbers)}"
        self.lines.append(f"(declare-const {name} Real)")
        return name

    def check(self, *choices: str) -> None:
        """Assert that one of the formulas holds."""
        self.lines.append(f"(assert (or {' '.join(choices)}))")


@dataclass
class Valuation(ABC):
    """An interpretation: dual numbers over a semiring, and which powers 1/x and sqrt(x) are."""

    script: Script
    inverse: int
    root: int
    parameters: dict[str, Vector] = field(default_factory=dict)

    @abstractmethod
    def plus(self, x: str, y: str) -> str:
        """Return the semiring's sum."""

    @abstractmethod
    def times(self, x: str, y: str) -> str:
        """Return the semiring's product."""

    @abstractmethod
    def unit(self) -> Vector:
        """Return the semiring's one."""

    @abstractmethod
    def choose(self, kind: str) -> Vector:
        """Return a parameter: a "value", which is at least one, a "slope", or a "mix" (alpha)."""

    def parameter(self, name: str, kind: str = "value") -> Vector:
        """Return the parameter of this name."""
        key = f"{kind} {name}"
        if key not in self.parameters:
            self.parameters[key] = self.choose(kind)
        return self.parameters[key]

    def of(self, expression: Expression) -> Dual:
        """Return the value of an expression."""
        if expression.op == "one":
            return Dual(self.unit(), None)
        if expression.op == "leaf":
            return self.known(" ".join(expression.words))
        rule = _RULES.get(expression.op)
        if rule is None:
            return self.function(expression)
        return rule(self, *(self.of(a) for a in expression.args))

    def known(self, name: str) -> Dual:
        """Return a number of its own, by name."""
        return Dual(self.parameter(name), self.parameter(name, "slope"))

    def each(self, op: Callable[[str, str], str], x: Vector, y: Vector) -> Vector:
        """Return an operation's results, component by component."""
        return tuple(self.script.define(op(a, b)) for a, b in zip(x, y, strict=True))

    def sum(self, x: Dual, y: Dual) -> Dual:
        """Return x + y."""
        return Dual(self.each(self.plus, x.value, y.value), self.slopes(x.slope, y.slope))

    def slopes(self, x: Vector | None, y: Vector | None) -> Vector | None:
        """Return the sum of two slopes."""
        return self.each(self.plus, x, y) if x and y else x or y

    def product(self, x: Dual, y: Dual) -> Dual:
        """Return x * y."""
        left = self.each(self.times, x.value, y.slope) if y.slope else None
        right = self.each(self.times, y.value, x.slope) if x.slope else None
        return Dual(self.each(self.times, x.value, y.value), self.slopes(left, right))

    def power(self, x: Dual, exponent: int) -> Dual:
        """Return x * x * ... * x."""
        return x if exponent == 1 else self.product(x, self.power(x, exponent - 1))

    def exp(self, x: Dual) -> Dual:
        """Return exp(x), which turns sums into products."""
        mixed = self.each(self.times, self.parameter("alpha", "mix"), x.value)
        slope = self.each(self.times, self.parameter("beta"), x.slope) if x.slope else None
        return Dual(self.unit(), self.slopes(mixed, slope))

    def function(self, expression: Expression) -> Dual:
        """Return f(x, y, ...) = c + cx * x * x + cy * y * y + ..., with cx = cy in max."""
        name, result = expression.op, self.known(expression.op)
        for i, arg in enumerate(expression.args):
            weight = self.known(f"{name} of" if name == "max" else f"{name} of {i}")
            result = self.sum(result, self.product(weight, self.power(self.of(arg), 2)))
        return result


_RULES: dict[str, Callable[..., Dual]] = {
    "add": Valuation.sum,
    "mul": Valuation.product,
    "div": lambda v, x, y: v.product(x, v.power(y, v.inverse)),
    "sqrt": lambda v, x: v.power(x, v.root),
    "exp": Valuation.exp,
}


@dataclass
class Weights(Valuation):
    """Reals from 1 on: all are 1 but the value declared `at` some place; alpha is 0."""

    at: int = 0

    def plus(self, x: str, y: str) -> str:
        """Return x + y."""
        return f"(+ {x} {y})"

    def times(self, x: str, y: str) -> str:
        """Return x * y."""
        return f"(* {x} {y})"

    def unit(self) -> Vector:
        """Return 1."""
        return ("1.0",)

    def choose(self, kind: str) -> Vector:
        """Return 1, or 4 in one place."""
        if kind == "mix":
            return ("0.0",)
        values = sum(key.startswith("value") for key in self.parameters)
        return ("4.0",) if kind == "value" and values == self.at else ("1.0",)


@dataclass
class Tropical(Valuation):
    """Pairs of reals, with max and +, that z3 finds.

    The two may measure opposite directions: how far apart the products of a sum are.
    """

    def plus(self, x: str, y: str) -> str:
        """Return the greater of x and y."""
        return f"(ite (>= {x} {y}) {x} {y})"

    def times(self, x: str, y: str) -> str:
        """Return x + y."""
        return f"(+ {x} {y})"

    def unit(self) -> Vector:
        """Return 0."""
        return ("0.0", "0.0")

    def choose(self, kind: str) -> Vector:
        """Return unknowns."""
        unknowns = (self.script.declare(), self.script.declare())
        if kind == "value":
            self.script.check(f"(>= {total(unknowns)} 0.0)")
        return unknowns


def total(vector: Vector) -> str:
    """Return the sum of the components."""
    return vector[0] if len(vector) == 1 else f"(+ {' '.join(vector)})"
