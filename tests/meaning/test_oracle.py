"""The normal form against z3: law by law, and on thousands of random pairs of expressions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from axioms import (
    Answer,
    Expression,
    apply,
    contained,
    equal,
    leaf,
    one,
    term_of,
)

from mirage_kernels.generator.meaning import abstract
from mirage_kernels.generator.meaning.terms import Terms

BATCHES, PAIRS = 12, 100  # of pairs for equality, and as many for containment
DECIDED, UNDECIDED = 30, 8  # in a batch: at least, either way, and at most

X, Y, Z = leaf("x"), leaf("y"), leaf("z")
VARIABLES = (X, Y, Z)
ZERO = leaf("const", "0")
MINUS_ONE = leaf("const", "-1")


add, mul, div = partial(apply, "add"), partial(apply, "mul"), partial(apply, "div")
exp, sqrt, silu = partial(apply, "exp"), partial(apply, "sqrt"), partial(apply, "silu")
where = partial(apply, "where")


def total(x: Expression, over: str = "K") -> Expression:
    return Expression("sum", (x,), (over,))


Pair = tuple[Expression, Expression]
LAWS: dict[str, Pair] = {
    "addition commutes": (add(X, Y), add(Y, X)),
    "products commute": (mul(X, Y), mul(Y, X)),
    "addition associates": (add(add(X, Y), Z), add(X, add(Y, Z))),
    "products associate": (mul(mul(X, Y), Z), mul(X, mul(Y, Z))),
    "distributivity": (mul(X, add(Y, Z)), add(mul(X, Y), mul(X, Z))),
    "a common denominator": (div(add(X, Y), Z), add(div(X, Z), div(Y, Z))),
    "a factor moves in": (mul(X, div(Y, Z)), div(mul(X, Y), Z)),
    "division twice": (div(div(X, Y), Z), div(X, mul(Y, Z))),
    "exponentials": (mul(exp(X), exp(Y)), exp(add(X, Y))),
    "roots": (mul(sqrt(X), sqrt(Y)), sqrt(mul(X, Y))),
    "sums add": (total(add(X, Y)), add(total(X), total(Y))),
    "a sum keeps a factor": (total(mul(X, Y)), mul(X, total(Y))),
    "a sum keeps a divisor": (total(div(X, Y)), div(total(X), Y)),
    "sums commute": (total(total(X), "N"), total(total(X, "N"))),
    "the greater of two": (apply("max", X, Y), apply("max", Y, X)),
    "a reciprocal root": (apply("rsqrt", X), div(one, sqrt(X))),
    "a reciprocal is a factor": (mul(X, div(one, Y)), div(X, Y)),
    "one is neutral": (mul(one, X), X),
    "a mask is a factor": (where(X, mul(Y, Z), ZERO), mul(where(X, Y, ZERO), Z)),
    "a mask of a sum": (where(X, add(Y, Z), ZERO), add(where(X, Y, ZERO), where(X, Z, ZERO))),
    "a negative is a product": (apply("neg", X), mul(X, MINUS_ONE)),
    "a difference is a sum": (apply("sub", X, Y), add(X, apply("neg", Y))),
    "a square is a product": (apply("square", X), mul(X, X)),
}
NO_LAWS: dict[str, Pair] = {
    "division cancels": (div(mul(X, Y), Y), X),
    "division below": (div(X, div(Y, Z)), div(mul(X, Z), Y)),
    "a quotient is no product": (div(X, Y), mul(X, Y)),
    "subtraction cancels": (apply("sub", add(X, Y), Y), X),
    "a root squared": (mul(sqrt(X), sqrt(X)), X),
    "a root of a sum": (sqrt(add(X, Y)), add(sqrt(X), sqrt(Y))),
    "a sum of exponentials": (add(exp(X), exp(Y)), exp(add(X, Y))),
    "an exponential of a product": (exp(mul(X, Y)), mul(exp(X), exp(Y))),
    "functions add": (silu(add(X, Y)), add(silu(X), silu(Y))),
    "a term twice": (add(X, X), X),
    "a split denominator": (div(X, add(Y, Z)), add(div(X, Y), div(X, Z))),
    "another dim": (total(X), total(X, "N")),
    "a sum of products": (total(mul(X, Y)), mul(total(X), total(Y))),
    "a choice is no mask": (where(X, mul(Y, Z), Y), mul(where(X, Y, Y), Z)),
    "the greater of three": (
        apply("max", apply("max", X, Y), Z),
        apply("max", X, apply("max", Y, Z)),
    ),
}
UNREFUTED: dict[str, Pair] = {
    "a root of a quotient": (sqrt(div(X, Y)), div(sqrt(X), sqrt(Y))),
    "exponentials of other sums": (
        add(exp(X), exp(add(Y, Z))),
        add(exp(Y), exp(add(X, Z))),
    ),
}
WHOLES = {
    "a sum": add(X, Y),
    "a difference": apply("sub", X, Y),
    "a product": mul(X, Y),
    "a quotient": div(X, Y),
    "a sum along a dim": total(X),
    "an exponential": exp(X),
    "a root": sqrt(X),
    "a reciprocal root": apply("rsqrt", X),
    "a function": silu(X),
    "the greater of two": apply("max", X, Y),
    "a mask": where(X, Y, ZERO),
    "a choice": where(X, Y, Z),
}


def same(a: Expression, b: Expression) -> bool:
    terms = Terms()
    return term_of(terms, a) == term_of(terms, b)


def holds(target: Expression, part: Expression) -> bool:
    terms = Terms()
    return terms.contains(term_of(terms, target), term_of(terms, part))


def arguments(whole: Expression) -> list[Expression]:
    """Return what an op is applied to; the 0 of a mask belongs to the op."""
    return [a for a in whole.args if a != ZERO]


@pytest.mark.parametrize("name", LAWS)
def test_a_law_is_proved_by_z3_and_makes_one_normal_form(name: str) -> None:
    assert equal(*LAWS[name]) is Answer.YES
    assert same(*LAWS[name])


@pytest.mark.parametrize("name", NO_LAWS)
def test_what_is_no_law_is_refuted_by_z3_and_makes_two_normal_forms(name: str) -> None:
    assert equal(*NO_LAWS[name]) is Answer.NO
    assert not same(*NO_LAWS[name])


@pytest.mark.parametrize("name", UNREFUTED)
def test_z3_does_not_say_what_it_cannot_show(name: str) -> None:
    assert equal(*UNREFUTED[name]) is Answer.UNKNOWN
    assert not same(*UNREFUTED[name])


@pytest.mark.parametrize("name", WHOLES)
def test_an_argument_is_a_part(name: str) -> None:
    for part in arguments(WHOLES[name]):
        assert contained(WHOLES[name], part) is Answer.YES
        assert holds(WHOLES[name], part)


@pytest.mark.parametrize("name", WHOLES)
def test_an_argument_with_something_else_is_no_part(name: str) -> None:
    for arg in arguments(WHOLES[name]):
        part = mul(arg, leaf("w"))
        assert contained(WHOLES[name], part) is Answer.NO
        assert not holds(WHOLES[name], part)


def matched(pattern: Expression, e: Expression, found: dict[Expression, Expression]) -> bool:
    """Return whether an expression has a pattern's form; `found` gets its variables."""
    if pattern in VARIABLES:
        return found.setdefault(pattern, e) == e
    if (pattern.op, pattern.words, len(pattern.args)) != (e.op, e.words, len(e.args)):
        return False
    return all(matched(p, a, found) for p, a in zip(pattern.args, e.args, strict=True))


def replaced(pattern: Expression, found: dict[Expression, Expression]) -> Expression:
    if pattern in VARIABLES:
        return found[pattern]
    return Expression(pattern.op, tuple(replaced(a, found) for a in pattern.args), pattern.words)


def directions() -> Iterator[Pair]:
    for name, (left, right) in LAWS.items():
        if name != "one is neutral":
            yield left, right
            yield right, left


DIRECTIONS = list(directions())


def rewritings(e: Expression) -> Iterator[Expression]:
    """Yield every expression that one law makes of `e`, at any place."""
    for left, right in DIRECTIONS:
        found: dict[Expression, Expression] = {}
        if matched(left, e, found):
            yield replaced(right, found)
    for i, arg in enumerate(e.args):
        for other in rewritings(arg):
            yield Expression(e.op, (*e.args[:i], other, *e.args[i + 1 :]), e.words)


def rewritten(e: Expression, rng: random.Random) -> Expression:
    """Return an equal expression, some laws away."""
    for _ in range(rng.randint(4, 10)):
        others = list(rewritings(e))
        if not others:
            break
        e = rng.choice(others)
    return e


def grown(rng: random.Random, depth: int) -> Expression:
    """Return a random expression of the inputs a, b and c."""
    if depth == 0 or rng.random() < 0.15:
        return leaf("input", rng.choice("abc"))
    first = grown(rng, depth - 1)
    kind = rng.choice(("add", "mul", "mul", "mul", "div", "div", "sum", "sum", "of one", "of two"))
    if kind == "sum":
        return total(first, rng.choice("KKN"))
    if kind == "of one":
        return apply(rng.choice(("exp", "exp", "sqrt", "sqrt", "rsqrt", "silu")), first)
    second = grown(rng, depth - 1)
    if kind == "of two":
        return rng.choice((apply("max", first, second), where(first, second, ZERO)))
    return apply(kind, first, second)


def part_of(e: Expression, rng: random.Random) -> Expression:
    """Return a sub-expression, not a leaf if there is another."""
    parts = list(e.parts())
    return rng.choice([p for p in parts if p.args] or parts)


def changed(e: Expression, rng: random.Random) -> Expression:
    """Return the expression with one of its parts replaced by something else."""
    if not e.args or rng.random() < 0.3:
        return grown(rng, 1)
    i = rng.randrange(len(e.args))
    return Expression(e.op, (*e.args[:i], changed(e.args[i], rng), *e.args[i + 1 :]), e.words)


def maybe_equal(rng: random.Random) -> Pair:
    """Return a random pair: rewritten, changed after that, or independent."""
    while True:
        a = grown(rng, rng.choice((2, 3, 3, 4)))
        b = rewritten(a, rng)
        b = rng.choice((b, b, b, b, changed(b, rng), changed(b, rng), grown(rng, 2)))
        if a != b:
            return a, b


def maybe_contained(rng: random.Random) -> Pair:
    """Return a random pair: a part, something around or beside a part, or something else."""
    whole = grown(rng, rng.choice((2, 3, 3, 4)))
    part = rewritten(part_of(rewritten(whole, rng), rng), rng)
    join = rng.choice((add, mul, div))
    others = (changed(part, rng), join(part, part_of(whole, rng)), grown(rng, 2))
    return whole, rng.choice((part, part, part, *others))


@dataclass(frozen=True)
class Question:
    """A question on pairs of expressions: z3's answer, and the normal form's."""

    pair: Callable[[random.Random], Pair]
    oracle: Callable[[Expression, Expression], Answer]
    normal_form: Callable[[Expression, Expression], bool]

    def compare(self, seed: int, pairs: int = PAIRS) -> tuple[Counter[str], list[Pair]]:
        """Return how often z3 answers what in a batch, and the pairs where the two disagree."""
        rng, counts, disagreed = random.Random(seed), Counter[str](), []
        for _ in range(pairs):
            a, b = self.pair(rng)
            answer = self.oracle(a, b)
            counts[answer.value] += 1
            if answer is not Answer.UNKNOWN and (answer is Answer.YES) != self.normal_form(a, b):
                disagreed.append((a, b))
        return counts, disagreed


QUESTIONS = {
    "equality": Question(maybe_equal, equal, same),
    "containment": Question(maybe_contained, contained, holds),
}


@pytest.mark.parametrize("seed", range(BATCHES))
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_normal_form_agrees_with_z3(question: str, seed: int, record_property) -> None:
    counts, disagreed = QUESTIONS[question].compare(seed)
    print(f"{question}, batch {seed}: {dict(counts)}")
    record_property("unknown", counts["unknown"])
    assert disagreed == []
    assert min(counts["yes"], counts["no"]) >= DECIDED
    assert counts["unknown"] <= UNDECIDED


WRONG_LAWS = {
    "div": lambda t, a, b: t.mul(a, b),
    "mul": lambda t, a, b: t.add(a, b),
    "add": lambda t, a, b: t.function("add", a, b),
    "max": lambda t, a, b: t.function("max", a, b),
    "rsqrt": lambda t, a: t.function("rsqrt", a),
}


@pytest.mark.parametrize("op", WRONG_LAWS)
def test_a_wrong_law_would_be_noticed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(abstract._LAWFUL, op, WRONG_LAWS[op])
    assert QUESTIONS["equality"].compare(0, pairs=30)[1]


@pytest.mark.parametrize("answer", [True, False])
def test_a_wrong_containment_would_be_noticed(
    answer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Terms, "contains", lambda terms, target, part: answer)
    assert QUESTIONS["containment"].compare(0, pairs=30)[1]
