"""Abstract expressions as trees, as they are written: what oracle.py is asked about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.meaning.polynomials import ONE, ZERO
from mirage_kernels.generator.meaning.terms import Atom, Terms


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
    """Return an input, constant, extent or summation factor."""
    return Expression("leaf", (), words)


def apply(op: str, *args: Expression) -> Expression:
    """Return op(args...)."""
    return Expression(op, args)


one = Expression("one")
ZERO_LEAF, MINUS_ONE = leaf("const", "0"), leaf("const", "-1")

_DEFINITIONS: dict[str, Callable[..., Expression]] = {
    "neg": lambda x: apply("mul", x, MINUS_ONE),
    "sub": lambda x, y: apply("add", x, apply("mul", y, MINUS_ONE)),
    "square": lambda x: apply("mul", x, x),
    "rsqrt": lambda x: apply("div", one, apply("sqrt", x)),
}


def in_few_ops(expression: Expression) -> Expression:
    """Return the expression with only add, mul, div, exp, sqrt and functions without laws.

    A sum is a product with a factor, where(c, x, 0) a product with a mask.
    """
    args = [in_few_ops(a) for a in expression.args]
    if expression.op in _DEFINITIONS:
        return _DEFINITIONS[expression.op](*args)
    if expression.op == "sum":
        return apply("mul", *args, leaf("sum", *expression.words))
    if expression.op == "where" and args[2] == ZERO_LEAF:
        return apply("mul", args[1], apply("mask", args[0]))
    return Expression(expression.op, tuple(args), expression.words)


def expression_of(terms: Terms, term: int) -> Expression:
    """Return the sum of products that a term is, as an expression."""
    return _joined("add", [_product(terms, p) for p in terms.table[term]])


def _product(terms: Terms, product: int) -> Expression:
    _, exponent, radicand, denominator = terms.products[product]
    factors = [_atom(terms, atom) for atom in terms.factors(product)]
    if exponent != ZERO:
        factors.append(apply("exp", expression_of(terms, exponent)))
    if radicand != ONE:
        factors.append(apply("sqrt", expression_of(terms, radicand)))
    above = _joined("mul", factors)
    return above if denominator == ONE else apply("div", above, expression_of(terms, denominator))


def _atom(terms: Terms, atom: Atom) -> Expression:
    args = [expression_of(terms, a) for a in terms.arguments(atom)]
    if not args:
        return leaf(*map(str, atom))
    if atom[1] == "where" and len(args) == 1:
        return apply("where", args[0], one, ZERO_LEAF)
    return apply(str(atom[1]), *args)


def _joined(op: str, args: Sequence[Expression]) -> Expression:
    """Return the op over all of `args`, its tree as flat as it can be."""
    if len(args) < 2:
        return args[0] if args else one
    half = len(args) // 2
    return apply(op, _joined(op, args[:half]), _joined(op, args[half:]))
