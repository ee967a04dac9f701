"""Containment in normal forms: nothing that is part of an expression is ever said not to be."""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest

from mirage_kernels.generator.ir import OPS, Kind
from mirage_kernels.generator.meaning.abstract import elementwise
from mirage_kernels.generator.meaning.terms import Terms

SEEDS = range(40)
LEAVES = ("a", "a", "b", "c", "d")


class Words:
    """Terms of one table, written like the expressions they stand for."""

    def __init__(self) -> None:
        self.terms = Terms()
        self.a, self.b, self.c, self.d, self.e = map(self.leaf, "abcde")
        self.k = self.terms.leaf("sum", "K", "tile")

    def leaf(self, name: str) -> int:
        return self.terms.leaf("input", name)

    def add(self, x: int, y: int) -> int:
        return self.terms.add(x, y)

    def mul(self, *factors: int) -> int:
        product, *rest = factors
        for factor in rest:
            product = self.terms.mul(product, factor)
        return product

    def div(self, x: int, y: int) -> int:
        return self.terms.div(x, y)

    def fn(self, name: str, x: int) -> int:
        return self.terms.function(name, x)


Case = Callable[[Words], tuple[int, int]]  # (whole, part)


def norm(w: Words, *factors: int) -> int:
    """x * factors / sqrt(k * x * x + eps), with x, eps = a, d."""
    return w.div(w.mul(w.a, *factors), w.fn("sqrt", w.add(w.mul(w.k, w.a, w.a), w.d)))


PARTS: dict[str, Case] = {
    "a sum before distributing": lambda w: (w.mul(w.add(w.a, w.b), w.c), w.add(w.a, w.b)),
    "a denominator's summand": lambda w: (w.div(w.a, w.add(w.b, w.c)), w.c),
    "early division": lambda w: (w.div(w.mul(w.a, w.b, w.k), w.c), w.div(w.a, w.c)),
    "a factor of a denominator's sum": lambda w: (
        w.div(w.c, w.mul(w.fn("silu", w.a), w.add(w.add(w.mul(w.a, w.a), w.a), w.b))),
        w.div(w.c, w.add(w.add(w.mul(w.a, w.a), w.a), w.b)),
    ),
    "a root of a square": lambda w: (w.fn("sqrt", w.mul(w.a, w.a)), w.fn("sqrt", w.a)),
    "the norm's root": lambda w: (
        norm(w, w.b, w.c),
        w.fn("sqrt", w.add(w.mul(w.k, w.a, w.a), w.d)),
    ),
    "the product before the norm": lambda w: (norm(w, w.b, w.c), w.mul(w.a, w.b, w.c)),
    "the scaled weight": lambda w: (norm(w, w.b, w.c), w.mul(w.b, w.c)),
    "one of three sums below": lambda w: (
        w.div(w.e, w.mul(w.add(w.a, w.b), w.add(w.c, w.d), w.add(w.a, w.c))),
        w.div(w.e, w.add(w.a, w.c)),
    ),
    "a sum of exponentials below": lambda w: (
        w.div(w.a, w.mul(w.add(w.fn("exp", w.b), w.c), w.add(w.fn("exp", w.c), w.fn("exp", w.d)))),
        w.div(w.a, w.add(w.fn("exp", w.d), w.fn("exp", w.c))),
    ),
    "a sum of quotients below": lambda w: (
        w.div(w.a, w.mul(w.add(w.div(w.b, w.c), w.d), w.add(w.e, w.div(w.d, w.b)))),
        w.div(w.a, w.add(w.div(w.d, w.b), w.e)),
    ),
    "the root of one of two sums": lambda w: (
        w.fn("sqrt", w.mul(w.add(w.a, w.b), w.add(w.c, w.d))),
        w.fn("sqrt", w.add(w.c, w.d)),
    ),
    "the exponential of two of three": lambda w: (
        w.fn("exp", w.add(w.add(w.a, w.b), w.div(w.c, w.d))),
        w.fn("exp", w.add(w.div(w.c, w.d), w.a)),
    ),
    "an inner quotient below": lambda w: (w.div(w.div(w.a, w.div(w.b, w.c)), w.d), w.div(w.b, w.c)),
}

NO_PARTS: dict[str, Case] = {
    "a sum along another dim": lambda w: (
        w.mul(w.a, w.k),
        w.mul(w.a, w.terms.leaf("sum", "N", "tile")),
    ),
    "division by the norm's argument": lambda w: (
        norm(w, w.b),
        w.div(w.a, w.add(w.mul(w.k, w.a, w.a), w.d)),
    ),
    "a sum that divides with a rest": lambda w: (
        w.div(w.e, w.add(w.mul(w.add(w.a, w.b), w.c), w.add(w.d, w.e))),
        w.div(w.e, w.add(w.a, w.b)),
    ),
    "a factor that needs subtraction": lambda w: (  # a^3 + b^3 = (a + b) * (a^2 - a*b + b^2)
        w.div(w.e, w.add(w.add(w.mul(w.a, w.a, w.a), w.mul(w.b, w.b, w.b)), w.add(w.c, w.d))),
        w.div(w.e, w.add(w.a, w.b)),
    ),
    "half a sum": lambda w: (
        w.div(w.e, w.add(w.add(w.a, w.b), w.add(w.a, w.b))),
        w.div(w.e, w.add(w.add(w.a, w.a), w.b)),
    ),
    "the root of a factor of a summand": lambda w: (
        w.fn("sqrt", w.add(w.mul(w.a, w.b), w.mul(w.c, w.d))),
        w.fn("sqrt", w.a),
    ),
    "a square of one of two roots": lambda w: (
        w.mul(w.fn("sqrt", w.a), w.fn("sqrt", w.b)),
        w.mul(w.fn("sqrt", w.a), w.fn("sqrt", w.a)),
    ),
    "an exponential too much": lambda w: (
        w.fn("exp", w.add(w.a, w.b)),
        w.mul(w.fn("exp", w.a), w.fn("exp", w.a)),
    ),
    "a factor of an exponent": lambda w: (w.fn("exp", w.mul(w.a, w.b)), w.fn("exp", w.a)),
}


@pytest.mark.parametrize("what", PARTS)
def test_a_part_is_contained(what: str) -> None:
    words = Words()
    whole, part = PARTS[what](words)
    assert words.terms.contains(whole, part)


@pytest.mark.parametrize("what", NO_PARTS)
def test_what_is_no_part_is_not_contained(what: str) -> None:
    words = Words()
    whole, part = NO_PARTS[what](words)
    assert not words.terms.contains(whole, part)


def grown(words: Words, rng: random.Random, depth: int, parts: list[int]) -> int:
    """Return a random expression over a, b, c and d; `parts` gets every part of it."""
    if depth == 0 or rng.random() < 0.15:
        term = words.leaf(rng.choice(LEAVES))
    else:
        kind = rng.choice(("add", "mul", "mul", "div", "fn", "fn", "sum"))
        first = grown(words, rng, depth - 1, parts)
        if kind == "fn":
            term = words.fn(rng.choice(("exp", "sqrt", "silu")), first)
        elif kind == "sum":
            term = words.mul(first, words.k)
        else:
            second = grown(words, rng, depth - 1, parts)
            term = getattr(words, kind)(first, second)
    parts.append(term)
    return term


@pytest.mark.parametrize("seed", SEEDS)
def test_every_part_of_an_expression_is_contained_in_it(seed: int) -> None:
    words, parts = Words(), []
    whole = grown(words, random.Random(seed), 4, parts)
    missed = [words.terms.table[p] for p in parts if not words.terms.contains(whole, p)]
    assert missed == []


@pytest.mark.parametrize("op", ["add", "mul", "div"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_contained_is_refused_before_it_is_made(seed: int, op: str) -> None:
    """And most of the rest is, of parts of the whole, of ones that it lacks, and of 1."""
    words, parts, refused, lacking = Words(), [], 0, 0
    rng = random.Random(seed)
    whole = grown(words, rng, 4, parts)
    grown(words, rng, 2, parts)
    for first, second in itertools.product({*parts, words.terms.one}, repeat=2):
        may = words.terms.may_contain(whole, op, first, second)
        is_contained = words.terms.contains(whole, getattr(words, op)(first, second))
        assert may or not is_contained
        refused, lacking = refused + (not may), lacking + (not is_contained)
    assert refused >= lacking / 2


@pytest.mark.parametrize("op", ["add", "mul", "div"])
@pytest.mark.parametrize("seed", SEEDS)
def test_joining_two_values_counts_at_least_the_inputs_of_both(seed: int, op: str) -> None:
    words, rng = Words(), random.Random(seed)
    first, second = grown(words, rng, 3, []), grown(words, rng, 3, [])
    both = words.terms.occurrences(first) + words.terms.occurrences(second)
    assert both <= words.terms.occurrences(getattr(words, op)(first, second))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_factor_is_divided_out_exactly(seed: int) -> None:
    words, rng = Words(), random.Random(seed)
    first, second = grown(words, rng, 4, []), grown(words, rng, 4, [])
    assert words.terms.quotient(words.mul(first, second), second) == first


def alike(words: Words, rng: random.Random, kind: str) -> list[int]:
    """Return some exponentials, roots or reciprocals: products that do not differ in atoms."""
    small = [words.a, words.b, words.add(words.a, words.b), words.mul(words.b, words.c), words.c]
    chosen = rng.choices(small, k=rng.randint(2, 5))
    return [words.div(words.terms.one, x) if kind == "div" else words.fn(kind, x) for x in chosen]


@pytest.mark.parametrize("kind", ["exp", "sqrt", "div"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_sum_of_products_of_equal_atoms_is_divided_out_exactly(seed: int, kind: str) -> None:
    words, rng = Words(), random.Random(seed)
    first, second = alike(words, rng, kind), alike(words, rng, kind)
    pairs = list(itertools.product(first, second))
    rng.shuffle(pairs)  # numbers of products in no order
    for x, y in pairs:
        words.mul(x, y)
    whole, divisor = functools.reduce(words.add, first), functools.reduce(words.add, second)
    assert words.terms.quotient(words.mul(whole, divisor), divisor) == whole


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_called_a_quotient_is_one(seed: int) -> None:
    words, rng = Words(), random.Random(seed)
    leaves = (words.a, words.a, words.b, words.c)
    for _ in range(100):
        whole, divisor = rng.choice(leaves), rng.choice(leaves)
        for _ in range(rng.choice((1, 3, 5, 7))):
            whole = words.add(whole, words.mul(rng.choice(leaves), rng.choice(leaves)))
        divisor = words.add(divisor, rng.choice((divisor, *leaves)))
        found = words.terms.quotient(whole, divisor)
        assert found is None or words.mul(found, divisor) == whole


def test_what_cannot_be_decided_is_kept() -> None:
    words = Words()
    words.terms.largest = 1  # it cannot divide sums
    a, b, c, d = (words.a, words.b, words.c, words.d)
    target = words.div(words.e, words.mul(words.add(a, b), words.add(c, d)))
    assert words.terms.contains(target, words.div(words.e, words.add(a, words.mul(a, c))))
    assert words.terms.may_contain(target, "div", words.e, words.add(a, words.mul(a, c)))


def test_more_leaves_than_there_are_small_primes_stay_apart() -> None:
    words = Words()
    leaves = [words.leaf(f"x{i}") for i in range(500)]
    whole = words.mul(*leaves[:-1])
    assert words.terms.contains(whole, words.mul(*leaves[100:400]))
    assert not words.terms.contains(whole, words.mul(*leaves[100:400], leaves[-1]))
    assert words.terms.occurrences(whole) == Counter({f"x{i}": 1 for i in range(499)})


@pytest.mark.parametrize(
    "op", [op.name for op in OPS.values() if op.commutative and op.kind is Kind.ELEMENTWISE]
)
def test_an_op_that_commutes_has_one_term(op: str) -> None:
    terms = Terms()
    a, b = (terms.leaf("input", name) for name in "ab")
    assert elementwise(terms, op, [a, b]) == elementwise(terms, op, [b, a])
