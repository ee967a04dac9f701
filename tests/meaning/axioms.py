"""What the normal form is tested against: yes or no from z3, each with a certificate.

Yes: a proof from the axioms as the Mirage paper writes them, over an uninterpreted sort; z3 takes
the instance of an axiom wherever one of its sides occurs, until nothing new appears. No: an
interpretation that obeys all axioms and tells the expressions apart, or gives a part more than the
whole.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import cycle

from mirage_kernels.generator.meaning.abstract import elementwise
from mirage_kernels.generator.meaning.oracle import Dual, Valuation, new_solver, separations
from mirage_kernels.generator.meaning.terms import Terms, primes_below


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
    has_exp = any(e.op == "exp" for e in whole.parts())
    certificates = separations(lambda v: (value(v, whole), value(v, piece)), has_exp=has_exp)
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


def value(v: Valuation, e: Expression) -> Dual:
    """Return what an expression in few ops is in an interpretation."""
    args = [value(v, a) for a in e.args]
    if e.op == "leaf":
        return v.number(" ".join(e.words))
    if e.op == "sum":
        return v.product(args[0], v.number(" ".join(("sum", *e.words))))
    rules = {
        "one": lambda: Dual(v.unit, None),
        "add": v.sum,
        "mul": v.product,
        "div": lambda x, y: v.product(x, v.power(y, v.inverse)),
        "sqrt": lambda x: v.power(x, v.root),
        "exp": v.exp,
    }
    name = "where" if e.op == "mask" else e.op
    return rules[e.op](*args) if e.op in rules else v.function(name, *args)


def _are_distinct(a: Expression, b: Expression) -> bool:
    """Return whether numbers from 2 on, each another prime, tell two expressions apart."""
    return any(_differ(value(v, a), value(v, b)) for v in (_primes(2, 3), _primes(3, 2)))


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
