"""Formulas of tensors in one form, however a program writes them: laws bring them there.

A term stands for a tensor up to rounding and up to leading dims: `[B, S, K]` and its view
`[B S, K]` are one term, `x.float()` is the term of x. Where a value is rounded to 16 bits a term
says so (`round`), since a kernel that reads a value reads the rounded one; laws look through it.

    x * sigmoid(x)                         ->  silu(x)
    x / (1 + exp(-x))                      ->  silu(x)
    x * rsqrt(mean(x * x) + eps)           ->  rms(x, eps)
    (x - mean(x)) * rsqrt(var(x) + eps)    ->  layer(x, eps)
    0.5 x (1 + erf(x / sqrt(2)))           ->  gelu(x)
    a column slice of linear(x, w)         ->  linear(x, rows of w)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMMUTATIVE = frozenset({"add", "mul"})
_CLOSE = 1e-4  # of constants that programs write with a few digits


@dataclass(frozen=True, eq=False)
class Term:
    """One formula; equal formulas of one table are one object."""

    op: str
    args: tuple[Term, ...] = ()
    value: float = 0.0  # of "const"; the extent that a "sum" runs over
    serial: int = 0

    @property
    def is_const(self) -> bool:
        """Say whether it is a number."""
        return self.op == "const"


def bare(term: Term) -> Term:
    """Return what was rounded."""
    while term.op == "round":
        term = term.args[0]
    return term


def same(one: Term, other: Term) -> bool:
    """Say whether both are one formula up to rounding."""
    return bare(one) is bare(other)


def close(one: float, other: float, within: float = _CLOSE) -> bool:
    """Say whether two constants are meant to be one."""
    return math.isclose(one, other, rel_tol=within)


class Terms:
    """A table of terms, and the laws by which new ones are made."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Term] = {}
        self._made = 0

    def raw(self, op: str, *args: Term, value: float = 0.0) -> Term:
        """Return the term as it is written."""
        if op in COMMUTATIVE:
            args = tuple(sorted(args, key=lambda term: term.serial))
        key = (op, value, *map(id, args))
        if key not in self._known:
            self._known[key] = self._new(op, args, value)
        return self._known[key]

    def leaf(self) -> Term:
        """Return a term for a tensor that nothing is known of."""
        return self._new("leaf", (), 0.0)

    def const(self, value: float) -> Term:
        """Return a number."""
        return self.raw("const", value=float(value))

    def round(self, term: Term) -> Term:
        """Return the term rounded to 16 bits."""
        return term if term.op in ("round", "const") else self.raw("round", term)

    def _new(self, op: str, args: tuple[Term, ...], value: float) -> Term:
        self._made += 1
        return Term(op, args, value, self._made)

    # -- laws --------------------------------------------------------------------------------------

    def add(self, a: Term, b: Term) -> Term:
        """a + b; numbers are added, 0 goes."""
        if a.is_const and b.is_const:
            return self.const(a.value + b.value)
        if b.is_const:
            a, b = b, a
        return b if a.is_const and a.value == 0 else self.raw("add", a, b)

    def sub(self, a: Term, b: Term) -> Term:
        """a - b  ->  a + -1 * b."""
        return self.add(a, self.mul(self.const(-1), b))

    def mul(self, a: Term, b: Term) -> Term:
        """a * b; numbers go outwards, and products that have names get them."""
        if b.is_const:
            a, b = b, a
        if a.is_const:
            return self._scaled(a.value, b)
        for one, other in ((a, b), (b, a)):
            if one.op == "mul" and one.args[0].is_const:
                return self._scaled(one.args[0].value, self.mul(one.args[1], other))
            if one.op == "mul" and one.args[1].is_const:
                return self._scaled(one.args[1].value, self.mul(one.args[0], other))
        for law in _PRODUCTS:
            made = law(self, a, b) or law(self, b, a)
            if made is not None:
                return made
        return self.raw("mul", a, b)

    def _scaled(self, factor: float, term: Term) -> Term:
        if term.is_const:
            return self.const(factor * term.value)
        inner = next((a for a in term.args if a.is_const), None) if term.op == "mul" else None
        if inner is not None:
            other = next(a for a in term.args if a is not inner)
            return self._scaled(factor * inner.value, other)
        if close(factor, 1, 1e-9):
            return term
        whole = bare(term)
        if whole.op == "sum" and close(factor * whole.value, 1, 1e-6):
            return self.raw("mean", *whole.args)
        return self.raw("mul", self.const(factor), term)

    def div(self, a: Term, b: Term) -> Term:
        """a / b  ->  a * (1 / b)."""
        return self.mul(a, self.reciprocal(b))

    def reciprocal(self, term: Term) -> Term:
        """1 / x; of a root rsqrt, of 1 + exp(-x) the sigmoid of x."""
        inner = bare(term)
        if inner.is_const and inner.value:
            return self.const(1 / inner.value)
        if inner.op == "sqrt":
            return self.raw("rsqrt", *inner.args)
        power = _beside_one(inner)
        if power is not None and bare(power).op == "exp":
            return self.raw("sigmoid", self.mul(self.const(-1), bare(power).args[0]))
        return self.raw("reciprocal", term)

    def power(self, term: Term, exponent: float) -> Term:
        """x ** n for the few n that models write."""
        if exponent in (2, 3):
            squared = self.mul(term, term)
            return squared if exponent == 2 else self.mul(term, squared)
        if exponent == 0.5:
            return self.sqrt(term)
        if exponent in (-0.5, -1):
            return self.reciprocal(self.sqrt(term) if exponent == -0.5 else term)
        return term if exponent == 1 else self.raw("power", term, self.const(exponent))

    def sqrt(self, term: Term) -> Term:
        """The root; of a sum of squares the length of a row."""
        inner = bare(term)
        squared = bare(inner.args[0]) if inner.op == "sum" else None
        if squared is not None and squared.op == "mul" and same(*squared.args):
            return self.raw("length", squared.args[0])
        return self.raw("sqrt", term)

    def normed(self, term: Term, eps: Term) -> Term:
        """x / sqrt(mean(x * x) + eps); a layer norm where x is y - mean(y)."""
        inner = bare(term)
        for one, other in _orders(inner, "add"):
            mean = _times_minus_one(bare(other))
            if mean is not None and bare(mean).op == "mean" and same(bare(mean).args[0], one):
                return self.raw("layer", one, eps)
        return self.raw("rms", term, eps)

    def variance(self, term: Term) -> Term:
        """mean((x - mean(x))^2)."""
        centred = self.sub(term, self.raw("mean", term))
        return self.raw("mean", self.mul(centred, centred))

    def linear(self, x: Term, weight: Term) -> Term:
        """x @ weight^T."""
        return self.raw("linear", x, weight)

    def columns(self, term: Term, first: int, end: int) -> Term:
        """A slice of the last dim; of a product it is that of the weight's rows."""
        inner = bare(term)
        if inner.op == "linear":
            x, weight = inner.args
            return self.linear(x, self.rows(weight, first, end))
        for one, other in _orders(inner, "add"):
            if bare(one).op == "linear" and other.op in ("leaf", "rows"):
                return self.add(self.columns(one, first, end), self.rows(other, first, end))
        return self.raw("columns", term, self.const(first), self.const(end))

    def rows(self, term: Term, first: int, end: int) -> Term:
        """A slice of a weight's first dim."""
        if term.op == "rows":
            start = int(term.args[1].value)
            return self.rows(term.args[0], start + first, start + end)
        return self.raw("rows", term, self.const(first), self.const(end))


# -- products that have names ----------------------------------------------------------------------


def _orders(term: Term, op: str) -> Iterator[tuple[Term, Term]]:
    if term.op == op:
        a, b = term.args
        yield a, b
        yield b, a


def _beside_one(term: Term) -> Term | None:
    """Return x of 1 + x."""
    found = (b for a, b in _orders(term, "add") if a.is_const and close(a.value, 1))
    return next(found, None)


def _times_minus_one(term: Term) -> Term | None:
    found = (b for a, b in _orders(term, "mul") if a.is_const and a.value == -1)
    return next(found, None)


def _silu(terms: Terms, x: Term, gate: Term) -> Term | None:
    gate = bare(gate)
    is_silu = gate.op == "sigmoid" and same(gate.args[0], x)
    return terms.raw("silu", x) if is_silu else None


def _norm(terms: Terms, x: Term, root: Term) -> Term | None:
    """x * rsqrt(mean(x * x) + eps), also as x * (rsqrt(...) * weight)."""
    root = bare(root)
    for one, other in _orders(root, "mul"):
        inner = _norm(terms, x, one) if bare(one).op == "rsqrt" else None
        if inner is not None:
            return terms.mul(inner, other)
    if root.op != "rsqrt":
        return None
    mean, eps = bare(root.args[0]), terms.const(0)
    for one, other in _orders(mean, "add"):
        if one.is_const:
            mean, eps = bare(other), one
            break
    squared = bare(mean.args[0]) if mean.op == "mean" else mean
    if squared is mean or squared.op != "mul" or not all(same(a, x) for a in squared.args):
        return None
    return terms.normed(x, eps)


_ERF = {1: math.sqrt(0.5)}
_TANH = {1: math.sqrt(2 / math.pi), 3: math.sqrt(2 / math.pi) * 0.044715}


def _gelu(terms: Terms, x: Term, gate: Term) -> Term | None:
    """x * (1 + erf(x / sqrt(2)))  ->  2 gelu(x), and the same with its tanh form."""
    inner = _beside_one(bare(gate))
    if inner is None or bare(inner).op not in ("erf", "tanh"):
        return None
    inner = bare(inner)
    wanted, name = (_ERF, "gelu") if inner.op == "erf" else (_TANH, "gelu_tanh")
    found = _polynomial(inner.args[0], x)
    if found is None or found.keys() != wanted.keys():
        return None
    if not all(close(found[degree], wanted[degree]) for degree in wanted):
        return None
    return terms.mul(terms.const(2), terms.raw(name, x))


def _polynomial(term: Term, x: Term) -> dict[int, float] | None:
    """Return the coefficients of a term that is a polynomial of x, by degree."""
    term = bare(term)
    if term is bare(x):
        return {1: 1.0}
    if term.is_const:
        return {0: term.value}
    if term.op not in COMMUTATIVE:
        return None
    a, b = (_polynomial(argument, x) for argument in term.args)
    if a is None or b is None:
        return None
    if term.op == "add":
        return {d: a.get(d, 0.0) + b.get(d, 0.0) for d in a.keys() | b.keys()}
    made: dict[int, float] = {}
    for (d, p), (e, q) in ((m, n) for m in a.items() for n in b.items()):
        made[d + e] = made.get(d + e, 0.0) + p * q
    return made


_PRODUCTS: tuple[Callable[[Terms, Term, Term], Term | None], ...] = (_silu, _norm, _gelu)
