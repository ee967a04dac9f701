"""What the normal form is tested against: yes or no from z3, each with a certificate.

Yes: a proof from the axioms as the Mirage paper writes them, over an uninterpreted sort; z3 takes
the instance of an axiom wherever one of its sides occurs, until nothing new appears. No: an
interpretation that obeys all axioms and tells the expressions apart, or gives a part more than the
whole.

Interpretations: values are dual numbers v + s*e, with e*e = 0, over a semiring: v is the value, s
the slope. Division by y is multiplication by a power of y and a square root is another power, so
that nothing cancels; exp(v + s*e) = 1 + (alpha*v + beta*s)*e; any other function is a polynomial.
Two semirings:
* weights: whole numbers from 1 on;
* tropical: max for addition and + for multiplication, on pairs of reals whose sum is not negative,
  which z3 finds. The two may measure opposite directions: how far apart the products of a sum are.
In both, a sub-expression's measure is at most that of the whole. A measure is the slope (of a pair
the sum of both) and, of weights, the value where the target has no exp.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from itertools import count, cycle

import z3

from mirage_kernels.generator.meaning.abstract import elementwise
from mirage_kernels.generator.meaning.terms import Terms, primes_below

Vector = tuple  # of numbers, or of z3's
WORK = 100_000  # z3's resource limit for one question
HEAVY = 8  # leaves that are tried with a weight above the others'


@dataclass(frozen=True)
class Expression:
    """An op on expressions, or one of two leaves: "leaf" with its words, and "one".

    `sum` is written `Expression("sum", (x,), ("K",))`; other ops are elementwise.
    """

    op: str
    args: tuple[Expression, ...] = ()
    words: tuple[str, ...] = ()

    def parts(self) -> Iterator[Expression]:
        """Yield the sub-expressions, this one first."""
        yield self
        for arg in self.args:
            yield from arg.parts()


def leaf(*words: str) -> Expression:
    return Expression("leaf", (), words)


def apply(op: str, *args: Expression) -> Expression:
    return Expression(op, args)


one = Expression("one")
ZERO_LEAF, MINUS_ONE = leaf("const", "0"), leaf("const", "-1")
DEFINITIONS = {
    "neg": lambda x: apply("mul", x, MINUS_ONE),
    "sub": lambda x, y: apply("add", x, apply("mul", y, MINUS_ONE)),
    "square": lambda x: apply("mul", x, x),
    "rsqrt": lambda x: apply("div", one, apply("sqrt", x)),
}


def in_few_ops(e: Expression) -> Expression:
    """Return an expression in add, mul, div, sum, exp, sqrt and functions without laws.

    where(c, x, 0) is a product with a mask.
    """
    if e.op in DEFINITIONS:
        return in_few_ops(DEFINITIONS[e.op](*e.args))
    args = tuple(map(in_few_ops, e.args))
    if e.op == "where" and args[2] == ZERO_LEAF:
        return apply("mul", args[1], apply("mask", args[0]))
    return Expression(e.op, args, e.words)


class Answer(Enum):
    """What is known: yes and no are certain."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


# Both sides of each axiom; x, y and z stand for anything. A side that z3 cannot match on its own
# (it lacks a variable) only follows from the other.
EQUALITIES = (
    ("(add x y)", "(add y x)"),
    ("(mul x y)", "(mul y x)"),
    ("(add (add x y) z)", "(add x (add y z))"),
    ("(mul (mul x y) z)", "(mul x (mul y z))"),
    ("(mul x (add y z))", "(add (mul x y) (mul x z))"),
    ("(div (add x y) z)", "(add (div x z) (div y z))"),
    ("(mul x (div y z))", "(div (mul x y) z)"),
    ("(div (div x y) z)", "(div x (mul y z))"),
    ("(mul (exp x) (exp y))", "(exp (add x y))"),
    ("(mul (sqrt x) (sqrt y))", "(sqrt (mul x y))"),
    ("(max x y)", "(max y x)"),
)
WITH_ONE = (("(mul x one)", "x"), ("(div x one)", "x"), ("(div x y)", "(mul x (div one y))"))
SUM = (
    ("(SUM (add x y))", "(add (SUM x) (SUM y))"),
    ("(SUM (mul x y))", "(mul x (SUM y))"),
    ("(SUM (div x y))", "(div (SUM x) y)"),
)
ARITIES = {"add": 2, "mul": 2, "div": 2, "max": 2, "exp": 1, "sqrt": 1, "mask": 1}


def solve(script: Iterable[str]) -> str:
    """Return what z3 says of a script: sat, unsat or unknown."""
    solver = new_solver()
    solver.from_string("\n".join(script))
    return str(solver.check())


def equal(a: Expression, b: Expression) -> Answer:
    """Return whether two expressions are equal by the axioms."""
    left, right = in_few_ops(a), in_few_ops(b)
    if _are_distinct(left, right):
        return Answer.NO
    differ = f"(assert (not (= {_text(left)} {_text(right)})))"
    return Answer.YES if solve([*_axioms(left, right), differ]) == "unsat" else Answer.UNKNOWN


def contained(target: Expression, part: Expression) -> Answer:
    """Return whether `part` is a sub-expression of something equal to `target`."""
    whole, piece = in_few_ops(target), in_few_ops(part)
    certificates = separations(whole, piece)
    if next(certificates):
        return Answer.NO
    apart = f"(assert (and (part {_text(whole)}) (not (part {_text(piece)}))))"
    if solve([*_axioms(whole, piece), apart]) == "unsat":
        return Answer.YES
    return Answer.NO if any(certificates) else Answer.UNKNOWN


def _axioms(a: Expression, b: Expression) -> Iterator[str]:
    """Yield declarations and axioms for what occurs in two expressions."""
    nodes = [*a.parts(), *b.parts()]
    yield "(declare-sort S 0) (declare-fun part (S) Bool)"
    symbols = {_symbol(n) for n in nodes if not n.args}
    for constant in sorted(symbols | {"one", "|const 0|", "|const -1|"}):
        yield f"(declare-const {constant} S)"
    ops = ARITIES | {_symbol(n): len(n.args) for n in nodes if n.args}
    for op, arity in sorted(ops.items()):
        yield f"(declare-fun {op} ({'S ' * arity}) S)"
        yield _part_axiom(op, arity)
    yield "(assert (= (sqrt one) one))"
    sums = sorted({_symbol(n) for n in nodes if n.op == "sum"})
    equalities = [
        *EQUALITIES,
        *((p.replace("SUM", s), q.replace("SUM", s)) for s in sums for p, q in SUM),
    ]
    equalities += [(f"({s} ({t} x))", f"({t} ({s} x))") for s in sums for t in sums if s < t]
    if "one" in symbols:
        equalities += WITH_ONE
    for left, right in equalities:
        yield _axiom(left, right)


def _axiom(left: str, right: str) -> str:
    """Return left = right for all x, y, z, instantiated where a side occurs.

    A side that lacks a variable does not say what the other one is.
    """
    variables = [v for v in "xyz" if v in _words(left)]
    sides = [s for s in (left, right) if s[0] == "(" and set(variables) <= _words(s)]
    patterns = " ".join(f":pattern ({s})" for s in sides)
    bound = " ".join(f"({v} S)" for v in variables)
    return f"(assert (forall ({bound}) (! (= {left} {right}) {patterns})))"


def _words(text: str) -> set[str]:
    return set(text.replace("(", " ").replace(")", " ").split())


def _part_axiom(op: str, arity: int) -> str:
    """Return that the arguments of a part are parts."""
    names = [f"x{i}" for i in range(arity)]
    bound = " ".join(f"({n} S)" for n in names)
    whole = f"({op} {' '.join(names)})"
    parts = " ".join(f"(part {n})" for n in names)
    return f"(assert (forall ({bound}) (! (=> (part {whole}) (and {parts})) :pattern ({whole}))))"


def _text(expression: Expression) -> str:
    if not expression.args:
        return _symbol(expression)
    return f"({_symbol(expression)} {' '.join(map(_text, expression.args))})"


def _symbol(expression: Expression) -> str:
    words = expression.words if expression.op == "leaf" else (expression.op, *expression.words)
    return f"|{' '.join(words)}|" if len(words) > 1 else words[0]


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

    plus: Callable
    times: Callable
    unit: Vector
    choose: Callable[[str], Vector]
    inverse: int
    root: int
    parameters: dict[str, Vector] = field(default_factory=dict)

    def parameter(self, name: str, kind: str = "value") -> Vector:
        key = f"{kind} {name}"
        if key not in self.parameters:
            self.parameters[key] = self.choose(kind)
        return self.parameters[key]

    def number(self, name: str) -> Dual:
        """Return a number of its own, by name."""
        return Dual(self.parameter(name), self.parameter(name, "slope"))

    def slopes(self, x: Vector | None, y: Vector | None) -> Vector | None:
        return tuple(map(self.plus, x, y)) if x and y else x or y

    def sum(self, x: Dual, y: Dual) -> Dual:
        return Dual(tuple(map(self.plus, x.value, y.value)), self.slopes(x.slope, y.slope))

    def product(self, x: Dual, y: Dual) -> Dual:
        left = tuple(map(self.times, x.value, y.slope)) if y.slope else None
        right = tuple(map(self.times, y.value, x.slope)) if x.slope else None
        return Dual(tuple(map(self.times, x.value, y.value)), self.slopes(left, right))

    def power(self, x: Dual, exponent: int) -> Dual:
        return reduce(self.product, [x] * exponent)

    def exp(self, x: Dual) -> Dual:
        """Return exp(x), which turns sums into products."""
        mixed = tuple(map(self.times, self.parameter("alpha", "mix"), x.value))
        slope = tuple(map(self.times, self.parameter("beta"), x.slope)) if x.slope else None
        return Dual(self.unit, self.slopes(mixed, slope))

    def function(self, name: str, *args: Dual) -> Dual:
        """Return f(x, y, ...) = c + cx * x * x + cy * y * y + ..., with cx = cy in max."""
        result = self.number(name)
        for i, arg in enumerate(args):
            weight = self.number(f"{name} of" if name == "max" else f"{name} of {i}")
            result = self.sum(result, self.product(weight, self.power(arg, 2)))
        return result

    def of(self, e: Expression) -> Dual:
        """Return what an expression in few ops is."""
        args = list(map(self.of, e.args))
        if e.op == "leaf":
            return self.number(" ".join(e.words))
        if e.op == "sum":
            return self.product(args[0], self.number(" ".join(("sum", *e.words))))
        rules = {
            "one": lambda: Dual(self.unit, None),
            "add": self.sum,
            "mul": self.product,
            "div": lambda x, y: self.product(x, self.power(y, self.inverse)),
            "sqrt": lambda x: self.power(x, self.root),
            "exp": self.exp,
        }
        name = "where" if e.op == "mask" else e.op
        return rules[e.op](*args) if e.op in rules else self.function(name, *args)


def separations(whole: Expression, part: Expression) -> Iterator[bool]:
    """Yield for each kind of certificate that a part is none of a target whether there is one."""
    has_exp = any(e.op == "exp" for e in whole.parts())

    def weighed(at: int, inverse: int, root: int) -> bool:
        """Weigh with 1 all but the value made `at` some place; alpha is 0."""
        places = count()

        def choose(kind: str) -> Vector:
            if kind == "mix":
                return (0,)
            return (4,) if kind == "value" and next(places) == at else (1,)

        v = Valuation(operator.add, operator.mul, (1,), choose, inverse, root)
        x, y = v.of(whole), v.of(part)
        steeper = bool(x.slope and y.slope and y.slope > x.slope)
        return steeper or (not has_exp and y.value > x.value)

    yield _tropical(whole, part, inverse=3)
    powers = ((1, 1), (2, 1), (1, 2))
    yield any(weighed(at, *power) for power in powers for at in range(HEAVY + 1))
    yield _tropical(whole, part, inverse=1)


def _tropical(whole: Expression, part: Expression, inverse: int) -> bool:
    solver = new_solver()
    zero, numbers = z3.RealVal(0, solver.ctx), count()

    def choose(kind: str) -> Vector:
        unknowns = tuple(z3.Real(f"u{next(numbers)}", solver.ctx) for _ in range(2))
        if kind == "value":
            solver.add(unknowns[0] + unknowns[1] >= 0)
        return unknowns

    def greater(x: z3.ArithRef, y: z3.ArithRef) -> z3.ArithRef:
        return z3.If(x >= y, x, y)

    v = Valuation(greater, operator.add, (zero, zero), choose, inverse, 2)
    x, y = v.of(whole), v.of(part)
    if not (x.slope and y.slope):
        return False
    solver.add(y.slope[0] + y.slope[1] > x.slope[0] + x.slope[1])
    return str(solver.check()) == "sat"


def new_solver() -> z3.Solver:
    """Return a solver in a context of its own that stops after `WORK`."""
    solver = z3.SimpleSolver(ctx=z3.Context())
    solver.set("auto_config", False)
    solver.set("mbqi", False)  # no models of quantified axioms: only instances of them
    solver.set("qi.eager_threshold", 100.0)
    solver.set("rlimit", WORK)
    return solver


def _are_distinct(a: Expression, b: Expression) -> bool:
    """Return whether numbers from 2 on, each another prime, tell two expressions apart."""
    return any(_differ(v.of(a), v.of(b)) for v in (_primes(2, 3), _primes(3, 2)))


def _differ(x: Dual, y: Dual) -> bool:
    return x.value != y.value or bool(x.slope and y.slope and x.slope != y.slope)


def _primes(inverse: int, root: int) -> Valuation:
    primes = cycle(primes_below(512))
    return Valuation(operator.add, operator.mul, (1,), lambda kind: (next(primes),), inverse, root)


def term_of(terms: Terms, expression: Expression) -> int:
    """Return the normal form of an expression."""
    args = [term_of(terms, a) for a in expression.args]
    if expression.op == "leaf":
        return terms.leaf(*expression.words)
    if expression.op == "one":
        return terms.one
    if expression.op == "sum":
        return terms.mul(args[0], terms.leaf("sum", *expression.words))
    return elementwise(terms, expression.op, args)
