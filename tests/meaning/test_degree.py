"""The failure bound: how it grows, and that no wrong candidate passes more often than it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import Builder, Dim, DType, Graph, Level, TensorType
from mirage_kernels.generator.language import Tensor, exp, sqrt, sum
from mirage_kernels.generator.meaning.arrays import Array, array_reading
from mirage_kernels.generator.meaning.degree import Degree, degree_reading, failure_probability
from mirage_kernels.generator.meaning.field import Field, field_arithmetic
from mirage_kernels.generator.meaning.walk import results

SIZES = {"M": 3, "K": 10}
P = 83  # a safe prime small enough to try every input


def spec(inputs: str, program: Callable[..., Tensor]) -> Graph:
    """Trace a program of inputs with these dims: "MK M -"."""
    builder = Builder(Level.KERNEL)
    made = []
    for name, dims in zip("abcd", inputs.split(), strict=False):
        own = tuple(Dim(d, SIZES[d]) for d in dims if d != "-")
        made.append(Tensor(builder, builder.input(name, TensorType(own, DType.FP32))))
    return builder.graph([program(*made).name])


def degree(graph: Graph) -> Degree:
    inputs = [Degree(1, 0, frozenset(n.out.type.names)) for n in graph.inputs]
    return results(graph, inputs, degree_reading(SIZES))[0]


def fraction(graph: Graph) -> tuple[int, int]:
    made = degree(graph)
    return made.top, made.bottom


def test_an_input_has_degree_one() -> None:
    assert fraction(spec("M", lambda a: a)) == (1, 0)


def test_factors_add_their_degrees() -> None:
    assert fraction(spec("M M", lambda a, b: a * b * a)) == (3, 0)


def test_a_sum_has_its_largest_degree() -> None:
    assert fraction(spec("M M", lambda a, b: a * a + b)) == (2, 0)


def test_division_counts_below() -> None:
    assert fraction(spec("M M", lambda a, b: a / b)) == (1, 1)


def test_adding_fractions_multiplies_their_denominators() -> None:
    assert fraction(spec("M M M", lambda a, b, c: a / b + a / c)) == (2, 2)


def test_a_long_sum_without_denominator_has_the_degree_of_a_term() -> None:
    assert fraction(spec("MK", lambda a: sum(a * a, "K"))) == (2, 0)


def test_a_sum_of_fractions_multiplies_all_their_denominators() -> None:
    assert fraction(spec("MK MK", lambda a, b: sum(a / b, "K"))) == (10, 10)


def test_a_denominator_that_is_constant_along_the_sum_counts_once() -> None:
    assert fraction(spec("MK M", lambda a, b: sum(a / b, "K"))) == (1, 1)


def test_a_denominator_varies_along_the_dims_of_what_is_below() -> None:
    assert degree(spec("MK K", lambda a, b: a / b)).varies == {"K"}


def test_a_summed_dim_varies_no_more() -> None:
    assert degree(spec("MK MK", lambda a, b: sum(a / b, "K"))).varies == {"M"}


def test_a_random_functions_result_is_a_fresh_variable() -> None:
    assert fraction(spec("M", lambda a: sqrt(a * a * a))) == (1, 0)


def test_a_random_function_adds_the_collisions_of_its_argument() -> None:
    assert degree(spec("M", lambda a: sqrt(a * a * a))).collisions == 3


def test_the_bound_grows_with_the_degree() -> None:
    one, four = spec("M", lambda a: a), spec("M", lambda a: a * a * a * a)
    assert failure_probability(one, four, SIZES, P) > failure_probability(one, one, SIZES, P)


def test_the_bound_grows_with_what_is_summed_over_denominators() -> None:
    ratio = spec("MK MK", lambda a, b: sum(a / b, "K"))
    bounds = [failure_probability(ratio, ratio, {"M": 3, "K": n}, 10**6) for n in (2, 10)]
    assert bounds[0] < bounds[1]


def test_the_bound_shrinks_with_the_prime() -> None:
    graph = spec("M", lambda a: a)
    bounds = [failure_probability(graph, graph, SIZES, p) for p in (P, 2**31)]
    assert bounds[0] > bounds[1]


def test_the_bound_is_a_probability() -> None:
    ratio = spec("MK MK", lambda a, b: sum(a / b, "K"))
    assert failure_probability(ratio, ratio, SIZES, 3) == 1.0


def test_programs_with_exp_have_no_bound_yet() -> None:
    graph = spec("M", lambda a: exp(a))
    with pytest.raises(VerifyError, match="no failure bound is derived"):
        failure_probability(graph, graph, SIZES, P)


Wrong = tuple[str, Callable[..., Tensor], Callable[..., Tensor]]

# Scalars only: every input of the field is tried, so the probability is exact.
WRONG: dict[str, Wrong] = {
    "another power": ("-", lambda a: a * a * a * a, lambda a: a),
    "as many roots as the degree": ("-", lambda a: a * a - a * 3, lambda a: a * 0 - 2),
    "another factor": ("- -", lambda a, b: a * b, lambda a, b: a * a),
    "upside down": ("- -", lambda a, b: a / b, lambda a, b: b / a),
    "another denominator": ("- -", lambda a, b: a / b, lambda a, b: a / (b + a)),
    "a denominator twice": ("- -", lambda a, b: a / b, lambda a, b: a / (b * b)),
    "a sum of fractions": ("- -", lambda a, b: a / b + b / a, lambda a, b: (a + b) / (a * b)),
    "a difference below": ("- -", lambda a, b: 1 / (a - b), lambda a, b: 1 / (a + b)),
    "a root left out": ("- -", lambda a, b: sqrt(a) * b, lambda a, b: a * b),
    "a root of another argument": ("- -", lambda a, b: sqrt(a * b), lambda a, b: sqrt(a + b)),
    "a root of a product": ("- -", lambda a, b: sqrt(a * b), lambda a, b: sqrt(a) * sqrt(b)),
    "a norm without eps": ("- -", lambda a, b: a / sqrt(a * a + b), lambda a, b: a / sqrt(a * a)),
    "roots of two arguments": (
        "- -",
        lambda a, b: sqrt(a) + sqrt(b),
        lambda a, b: sqrt(a + b) + sqrt(a - b),
    ),
}


def accepted(left: Graph, right: Graph, field: Field) -> float:
    """Return the share of all inputs on which two programs of scalars agree."""
    arithmetic = array_reading(field_arithmetic(field), {})
    grid = np.array(list(itertools.product(range(field.p), repeat=len(left.inputs))))
    inputs = [Array(("draw",), (grid[:, i],)) for i in range(len(left.inputs))]
    one, other = (results(g, inputs, arithmetic)[0].parts[0] for g in (left, right))
    return float(np.mean(one == other))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_candidate_passes_no_more_often_than_the_bound_says(what: str) -> None:
    dims, left, right = WRONG[what]
    graphs = spec(dims, left), spec(dims, right)
    fields = [Field(P, root=4, key=key, exponents=False) for key in range(1, 41)]
    share = float(np.mean([accepted(*graphs, field) for field in fields]))
    assert share <= failure_probability(*graphs, {}, P)


def test_the_bound_is_reached_by_a_polynomial_with_all_its_roots() -> None:
    left, right = spec("-", lambda a: a * a - a * 3), spec("-", lambda a: a * 0 - 2)
    share = accepted(left, right, Field(P, root=4, key=1, exponents=False))
    assert share == failure_probability(left, right, {}, P) == 2 / P
