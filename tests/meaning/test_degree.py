"""The failure bound: how it grows, and that no wrong candidate passes more often than it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import (
    Axis,
    Builder,
    Dim,
    DType,
    Graph,
    Level,
    Node,
    Space,
    TensorType,
    Value,
)
from mirage_kernels.generator.language import Tensor, contract, exp, log, maximum, sqrt, sum
from mirage_kernels.generator.meaning.arrays import Array, Parts, array_reading
from mirage_kernels.generator.meaning.degree import degree_reading, failure_probability
from mirage_kernels.generator.meaning.expsums import Call, Fraction, variable
from mirage_kernels.generator.meaning.field import Field, field_arithmetic, random_parts
from mirage_kernels.generator.meaning.walk import results

SIZES = {"M": 3, "K": 10}
P = 83  # a safe prime small enough to try every input
LARGE = 2147481563


def spec(inputs: str, program: Callable[..., Tensor]) -> Graph:
    """Trace a program of inputs with these dims: "MK M -"."""
    builder = Builder(Level.KERNEL)
    made = []
    for name, dims in zip("abcd", inputs.split(), strict=False):
        own = tuple(Dim(d, SIZES[d]) for d in dims if d != "-")
        made.append(Tensor(builder, builder.input(name, TensorType(own, DType.FP32))))
    return builder.graph([program(*made).name])


def degree(graph: Graph, tied: int | None = None) -> Fraction:
    inputs = [
        variable({d: SIZES[d] for d in n.out.type.names}, tied=i == tied)
        for i, n in enumerate(graph.inputs)
    ]
    return results(graph, inputs, degree_reading(SIZES))[0]


def fraction(graph: Graph) -> tuple[int, int]:
    made = degree(graph)
    return made.top.coefficient.degree, made.bottom.coefficient.degree


def terms(graph: Graph, tied: int | None = None) -> tuple[int, int, int]:
    """Return the numbers of terms: above, of one monomial above, below."""
    made = degree(graph, tied)
    return made.top.count, made.top.most, made.bottom.count


def calls(graph: Graph) -> list[Call]:
    return [*degree(graph).calls.values()]


FRACTIONS: dict[str, tuple[str, Callable[..., Tensor], tuple[int, int]]] = {
    "an input has degree one": ("M", lambda a: a, (1, 0)),
    "factors add their degrees": ("M M", lambda a, b: a * b * a, (3, 0)),
    "a sum has its largest degree": ("M M", lambda a, b: a * a + b, (2, 0)),
    "division counts below": ("M M", lambda a, b: a / b, (1, 1)),
    "adding fractions multiplies their denominators": (
        "M M M",
        lambda a, b, c: a / b + a / c,
        (2, 2),
    ),
    "a long sum without denominator has the degree of a term": (
        "MK",
        lambda a: sum(a * a, "K"),
        (2, 0),
    ),
    "a sum of fractions multiplies all their denominators": (
        "MK MK",
        lambda a, b: sum(a / b, "K"),
        (10, 10),
    ),
    "a denominator that is constant along the sum counts once": (
        "MK M",
        lambda a, b: sum(a / b, "K"),
        (1, 1),
    ),
    "a random functions result is a fresh variable": ("M", lambda a: sqrt(a * a * a), (1, 0)),
    "a constant that is not whole is a variable": ("M", lambda a: a * 0.5, (2, 0)),
}


@pytest.mark.parametrize("law", FRACTIONS)
def test_the_degrees_of_a_fraction(law: str) -> None:
    dims, program, degrees = FRACTIONS[law]
    assert fraction(spec(dims, program)) == degrees


def test_a_random_functions_call_knows_the_degree_of_its_argument() -> None:
    (call,) = calls(spec("M", lambda a: sqrt(a * a * a)))
    degree = call.argument.top.coefficient.degree
    assert (call.function, degree, call.number) == ("sqrt", 3, 1)


def test_one_call_for_all_elements_that_are_summed_is_one_call() -> None:
    (call,) = calls(spec("MK M", lambda a, b: sum(a * sqrt(b), "K")))
    assert call.number == 1


def test_a_value_used_twice_is_called_once() -> None:
    def twice(a: Tensor) -> Tensor:
        root = sqrt(a)
        return root * root

    assert [c.number for c in calls(spec("M", twice))] == [1]


def test_a_maximum_is_three_calls() -> None:
    made = calls(spec("M M", maximum))
    assert [(c.function, c.number) for c in made] == [("max", 1)] * 3


def test_the_degree_of_an_argument_is_that_of_the_exponent() -> None:
    made = degree(spec("M M", lambda a, b: exp(a * b / a))).top
    assert (made.exponent.top.degree, made.exponent.bottom.degree) == (2, 1)
    assert made.coefficient.degree == 0


def softmax(a: Tensor, b: Tensor) -> Tensor:
    return contract(exp(a) / sum(exp(a), "K"), b, "K")


def test_a_softmax_has_one_term_per_weighted_element() -> None:
    assert terms(spec("MK K", softmax), tied=1) == (10, 1, 10)


def test_a_bound_with_exp_counts_one_inputs_monomials() -> None:
    graph = spec("MK K", softmax)
    bounds = [failure_probability(graph, graph, {"M": 3, "K": n}, LARGE) for n in (2, 3, 5)]
    assert [round(np.log2(b), 1) for b in bounds] == [-9.0, -5.0, -2.3]


def test_programs_with_too_many_terms_have_no_bound() -> None:
    graph = spec("MK K", softmax)
    assert failure_probability(graph, graph, {"M": 3, "K": 40}, LARGE) == 1.0


def test_what_is_beyond_another_exp_has_no_bound() -> None:
    with pytest.raises(VerifyError, match="depends on another exp"):
        degree(spec("M", lambda a: exp(exp(a))))


def in_a_block(*body: Node, split: bool = False) -> Graph:
    """Return a kernel that loops along K in steps of 3, in parts of 7; it stores the last node."""
    m, k = Dim("M", SIZES["M"]), Dim("K", SIZES["K"])
    axes = (Axis("x", "M", 2), *((Axis("split", "K", 7, reduced=True),) if split else ()))
    cuts = ("M", "K") if split else ("M",)
    inner = Builder(Level.BLOCK, Space(axes, Axis("loop", "K", 3)))
    inner.add(Node("input", (), (Value("a", TensorType((m, k), DType.FP32)),), "", 0.0, cuts, "K"))
    for node in body:
        inner.add(node)
    stored = Value("stored", TensorType((m,), DType.FP32))
    inner.add(Node("output", (body[-1].name,), (stored,), cuts=cuts[:1] + (None,) * split))
    outer = Builder(Level.KERNEL)
    outer.input("a_whole", TensorType((m, k), DType.FP32))
    outer.add(
        Node("block", ("a_whole",), (Value("out", stored.type),), body=inner.graph(["stored"]))
    )
    return outer.graph(["out"])


def node(name: str, op: str, *args: str, over: str = "") -> Node:
    return Node(op, args, (Value(name, TensorType((), DType.FP32)),), over=over)


LOOPED = (node("e", "exp", "a"), node("s", "sum", "e", over="K"), node("t", "accum", "s"))
RESCALED = (
    node("m", "peak", "a", over="K"),
    node("d", "sub", "a", "m"),
    node("e", "exp", "d"),
    node("s", "sum", "e", over="K"),
    node("t", "accum_rescaled", "s", "m"),
)
JOINED = (
    *RESCALED,
    node("last_m", "last", "m"),
    node("whole", "combine_rescaled", "t", "last_m", over="K"),
)
CALLED = (node("r", "sqrt", "a"), node("s", "sum", "r", over="K"), node("t", "accum", "s"))
CALLED_PER_STEP = (
    node("s", "sum", "a", over="K"),
    node("r", "sqrt", "s"),
    node("t", "accum", "r"),
)


def test_steps_and_their_elements_multiply_to_the_terms_of_a_loop() -> None:
    assert terms(in_a_block(*LOOPED)) == (4 * 3, 4 * 3, 1)


def test_rescaling_adds_no_terms() -> None:
    assert terms(in_a_block(*RESCALED)) == terms(in_a_block(*LOOPED))


def test_blocks_of_a_split_multiply_the_terms_of_their_loops() -> None:
    assert terms(in_a_block(*JOINED, split=True)) == (2 * 3 * 3,) * 2 + (1,)


def test_a_loop_calls_a_function_for_every_element() -> None:
    assert [c.number for c in calls(in_a_block(*CALLED))] == [4 * 3]


def test_a_loop_calls_a_function_of_its_sums_once_per_step() -> None:
    assert [c.number for c in calls(in_a_block(*CALLED_PER_STEP))] == [4]


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
    "a root of a sum": ("- -", lambda a, b: sqrt(a + b), lambda a, b: sqrt(a) + sqrt(b)),
    "the smaller": ("- -", maximum, lambda a, b: maximum(a, a)),
    "roots of two arguments": (
        "- -",
        lambda a, b: sqrt(a) + sqrt(b),
        lambda a, b: sqrt(a + b) + sqrt(a - b),
    ),
}


def passing(left: Graph, right: Graph, field: Field, inputs: list[Array]) -> float:
    """Return the share of draws, along the dim "draw", that accept one program as the other.

    A draw on which either divides by zero is refused.
    """
    arithmetic = field_arithmetic(replace(field, total=True))
    refused = np.zeros(inputs[0].extent("draw"), bool)

    def div(a: Parts, b: Parts) -> Parts:
        for part in b:
            np.logical_or(refused, part == 0, out=refused)
        return arithmetic.elementwise["div"](a, b)

    noting = replace(arithmetic, elementwise={**arithmetic.elementwise, "div": div})
    reading = array_reading(noting, {})
    one, other = (results(g, inputs, reading)[0].parts[0] for g in (left, right))
    return float(np.mean((one == other) & ~refused))


def accepted(left: Graph, right: Graph, field: Field) -> float:
    """Return the share of all inputs on which two programs of scalars agree."""
    grid = np.array(list(itertools.product(range(field.p), repeat=len(left.inputs))))
    inputs = [Array(("draw",), (grid[:, i],)) for i in range(len(left.inputs))]
    return passing(left, right, field, inputs)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_candidate_passes_no_more_often_than_the_bound_says(what: str) -> None:
    dims, left, right = WRONG[what]
    graphs = spec(dims, left), spec(dims, right)
    fields = [Field(P, root=4, key=key, exponents=False) for key in range(1, 41)]
    shares = [accepted(*graphs, field) for field in fields]  # one for each choice of functions
    margin = 3 * np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) - margin <= failure_probability(*graphs, {}, P)


def test_the_bound_is_reached_by_a_polynomial_with_all_its_roots() -> None:
    left, right = spec("-", lambda a: a * a - a * 3), spec("-", lambda a: a * 0 - 2)
    share = accepted(left, right, Field(P, root=4, key=1, exponents=False))
    assert share == failure_probability(left, right, {}, P) == 2 / P


# Numbers of both kinds: the parts mod p are drawn, those mod q too, and the element of order q.
WITH_EXP: Mapping[str, Wrong] = {
    "another power": ("- -", lambda a, b: exp(a) * b, lambda a, b: exp(b) * b),
    "a power left out": ("- -", lambda a, b: exp(a) * b, lambda a, b: b),
    "a sum of powers": ("- - -", lambda a, b, c: exp(a) + exp(b), lambda a, b, c: exp(c) + 1),
    "weights exchanged": (
        "- - - -",
        lambda a, b, c, d: (exp(a) * c + exp(b) * d) / (exp(a) + exp(b)),
        lambda a, b, c, d: (exp(b) * c + exp(a) * d) / (exp(a) + exp(b)),
    ),
    "no division": (
        "- - - -",
        lambda a, b, c, d: (exp(a) * c + exp(b) * d) / (exp(a) + exp(b)),
        lambda a, b, c, d: exp(a) * c + exp(b) * d,
    ),
    "a logarithm of another sum": (
        "- - -",
        lambda a, b, c: log(exp(a) + exp(b)) - c,
        lambda a, b, c: log(exp(a) + exp(c)) - b,
    ),
    "logarithms of a sum": (
        "- -",
        lambda a, b: log(exp(a) + exp(b)),
        lambda a, b: log(exp(a)) + log(exp(b)),
    ),
    "a logarithm times another factor": (
        "- - -",
        lambda a, b, c: log(exp(a) + exp(b)) * c,
        lambda a, b, c: log(exp(a) + exp(c)) * b,
    ),
    "dependent exponents": ("- -", lambda a, b: exp(a) + exp(a * a), lambda a, b: exp(a * 2) + 1),
}


def agreeing(left: Graph, right: Graph, prime: int) -> float:
    """Return the share of 100 times 50 draws on which two programs of scalars with exp agree."""
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(100):
        root = pow(int(rng.integers(2, prime - 1)), 2, prime)
        field = Field(prime, root, int(rng.integers(1, 2**62)), exponents=True)
        inputs = [Array(("draw",), random_parts(field, (50,), rng)) for _ in left.inputs]
        shares.append(passing(left, right, field, inputs))
    return float(np.mean(shares))


@pytest.mark.parametrize("what", WITH_EXP)
@pytest.mark.parametrize("prime", [P, 1907, 65267])
def test_no_wrong_candidate_with_exp_passes_more_often_than_the_bound_says(
    what: str, prime: int
) -> None:
    dims, left, right = WITH_EXP[what]
    graphs = spec(dims, left), spec(dims, right)
    assert agreeing(*graphs, prime) <= failure_probability(*graphs, {}, prime)
