"""Laws as data, each run on its example: in the reals and in the field.

Laws of roots have no meaning in the field: roots are random functions there. What is no law must
fail everywhere. test_oracle.py shows which laws are axioms of abstract expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from mirage_kernels.generator.ir import Builder, Dim, DType, Graph, Level, TensorType
from mirage_kernels.generator.language import (
    Tensor,
    amax,
    amin,
    apply,
    contract,
    exp,
    maximum,
    mean,
    rms_norm,
    sqrt,
    sum,
)
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.field import (
    Field,
    draw_field,
    field_arithmetic,
    random_parts,
)
from mirage_kernels.generator.meaning.reals import FLOAT64
from mirage_kernels.generator.meaning.walk import results

SIZES = {"M": 3, "K": 5, "N": 4}
Side = Callable[..., Tensor]


@dataclass(frozen=True)
class Law:
    """left = right for inputs with these dims, in the reals and perhaps in the field."""

    name: str
    inputs: str  # dims of a, b, ...: "MK NK M"; "-" is a scalar
    left: Side
    right: Side
    in_field: bool = True


def k(x: Tensor, y: Tensor) -> Tensor:
    return contract(x, y, over="K")


LAWS = [
    Law("addition commutes", "M M", lambda a, b: a + b, lambda a, b: b + a),
    Law("addition associates", "M M M", lambda a, b, c: (a + b) + c, lambda a, b, c: a + (b + c)),
    Law("products commute", "M M", lambda a, b: a * b, lambda a, b: b * a),
    Law("products associate", "M M M", lambda a, b, c: (a * b) * c, lambda a, b, c: a * (b * c)),
    Law("distributivity", "M M M", lambda a, b, c: a * (b + c), lambda a, b, c: a * b + a * c),
    Law(
        "a common denominator", "M M M", lambda a, b, c: a / c + b / c, lambda a, b, c: (a + b) / c
    ),
    Law("division twice", "M M M", lambda a, b, c: (a / b) / c, lambda a, b, c: a / (b * c)),
    Law("a factor moves in", "M M M", lambda a, b, c: (a / b) * c, lambda a, b, c: (a * c) / b),
    Law("minus is adding the negative", "M M", lambda a, b: a - b, lambda a, b: a + (-b)),
    Law("a square is a product", "M", lambda a: apply("square", a), lambda a: a * a),
    Law("sums add", "MK MK", lambda a, b: sum(a + b, "K"), lambda a, b: sum(a, "K") + sum(b, "K")),
    Law("a sum keeps a factor", "MK M", lambda a, c: sum(a * c, "K"), lambda a, c: sum(a, "K") * c),
    Law("a product is a sum", "MK NK", k, lambda a, b: sum(a * b, "K")),
    Law("late division", "MK NK M", lambda a, b, c: k(a / c, b), lambda a, b, c: k(a, b) / c),
    Law(
        "a scale changes sides", "MK NK K", lambda a, b, g: k(a * g, b), lambda a, b, g: k(a, b * g)
    ),
    Law("a mean of products", "MK NK", lambda a, b: mean(a * b, "K"), lambda a, b: k(a / 5, b)),
    Law(
        "the late norm",
        "MK K NK -",
        lambda x, g, w, eps: k(rms_norm(x, g, eps, "K"), w),
        lambda x, g, w, eps: k(x, w * g) / sqrt(mean(x * x, "K") + eps),
    ),
    Law("exponentials", "M M", lambda a, b: exp(a) * exp(b), lambda a, b: exp(a + b)),
    Law(
        "roots multiply",
        "M M",
        lambda a, b: sqrt(a) * sqrt(b),
        lambda a, b: sqrt(a * b),
        in_field=False,
    ),
    Law("a root squared", "M", lambda a: sqrt(a) * sqrt(a), lambda a: a, in_field=False),
    Law(
        "maxima along dims commute",
        "MK",
        lambda a: amax(amax(a, "K"), "M"),
        lambda a: amax(amax(a, "M"), "K"),
    ),
    Law(
        "maxima associate",
        "MK MK",
        lambda a, b: maximum(amax(a, "K"), amax(b, "K")),
        lambda a, b: amax(maximum(a, b), "K"),
    ),
    Law("a minimum", "MK", lambda a: amin(a, "K"), lambda a: -amax(-a, "K")),
    Law("a maximum twice", "M", lambda a: maximum(a, a), lambda a: a, in_field=False),
    Law("division cancels", "M M", lambda a, b: (a * b) / b, lambda a, b: a),
    Law("subtraction cancels", "M M", lambda a, b: (a + b) - b, lambda a, b: a),
    Law("negating twice", "M", lambda a: apply("neg", -a), lambda a: a),
    Law("one is neutral", "M", lambda a: a * 1, lambda a: a),
    Law("division below", "M M M", lambda a, b, c: a / (b / c), lambda a, b, c: a * c / b),
]

WRONG = [
    Law("division does not commute", "M M", lambda a, b: a / b, lambda a, b: b / a),
    Law("minus does not commute", "M M", lambda a, b: a - b, lambda a, b: b - a),
    Law("half distributivity", "M M M", lambda a, b, c: a * (b + c), lambda a, b, c: a * b + c),
    Law("a split denominator", "M M M", lambda a, b, c: a / (b + c), lambda a, b, c: a / b + a / c),
    Law("a sum of squares", "MK", lambda a: sum(a * a, "K"), lambda a: sum(a, "K") * sum(a, "K")),
    Law(
        "a product of sums",
        "MK MK",
        lambda a, b: sum(a * b, "K"),
        lambda a, b: sum(a, "K") * sum(b, "K"),
    ),
    Law("a root of a sum", "M M", lambda a, b: sqrt(a + b), lambda a, b: sqrt(a) + sqrt(b)),
    Law("adding exponentials", "M M", lambda a, b: exp(a) + exp(b), lambda a, b: exp(a + b)),
    Law("a term twice", "M", lambda a: a + a, lambda a: a),
    Law("nearly the same constant", "M", lambda a: a * 1.0000001, lambda a: a * 1.0000002),
    Law("a largest product", "MK M", lambda a, b: amax(a * b, "K"), lambda a, b: amax(a, "K") + b),
    Law("a negative maximum", "MK", lambda a: amax(-a, "K"), lambda a: -amax(a, "K")),
    Law("a sum for a maximum", "MK", lambda a: amax(a, "K"), lambda a: sum(a, "K")),
    Law("another sum", "MK", lambda a: sum(a, "K"), lambda a: mean(a, "K")),
    Law(
        "early division", "MK NK M", lambda a, b, c: k(a / c, b), lambda a, b, c: k(a, b) / (c * c)
    ),
    Law(
        "the norm without its weight",
        "MK K NK -",
        lambda x, g, w, eps: k(rms_norm(x, g, eps, "K"), w),
        lambda x, g, w, eps: k(x, w) / sqrt(mean(x * x, "K") + eps),
    ),
]


def spec(law: Law, side: Side) -> Graph:
    builder = Builder(Level.KERNEL)
    inputs = []
    for name, dims in zip("abcd", law.inputs.split(), strict=False):
        own = tuple(Dim(d, SIZES[d]) for d in dims if d != "-")
        inputs.append(Tensor(builder, builder.input(name, TensorType(own, DType.FP32))))
    return builder.graph([side(*inputs).name])


def same(law: Law, field: Field | None = None) -> bool:
    """Return whether both sides agree on one draw, of the reals or of a field."""
    arithmetic = field_arithmetic(field) if field else FLOAT64
    sides = []
    for side in (law.left, law.right):
        graph, rng, inputs = spec(law, side), np.random.default_rng(7), []
        for names in (n.out.type.names for n in graph.inputs):
            shape = tuple(SIZES[d] for d in names)
            drawn = random_parts(field, shape, rng) if field else (rng.uniform(0.5, 2.0, shape),)
            inputs.append(Array(names, drawn))
        sides += results(graph, inputs, array_reading(arithmetic, SIZES))
    parts = list(zip(sides[0].parts, sides[1].over(sides[0].dims).parts, strict=False))
    if field:
        return all(np.array_equal(x, y) for x, y in parts)
    return all(np.allclose(x, y, rtol=1e-12, atol=0) for x, y in parts)


FIELD = draw_field(3, exponents=True)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_holds_for_its_example(law: Law) -> None:
    assert same(law)
    assert same(law, FIELD) == law.in_field


@pytest.mark.parametrize("law", WRONG, ids=lambda law: law.name)
def test_what_is_no_law_fails_everywhere(law: Law) -> None:
    assert not same(law)
    assert not same(law, FIELD)
