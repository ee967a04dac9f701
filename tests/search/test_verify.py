"""Proof by random evaluation: what is accepted, what is refused and how, what the record says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.ir import Builder, Dim, DType, Graph, Level, TensorType
from mirage_kernels.generator.language import Tensor, contract, exp, sum
from mirage_kernels.generator.meaning.field import SAFE_PRIMES, draw_field
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, output_type, trace
from mirage_kernels.generator.search.blocks import BlockSketch, Step
from mirage_kernels.generator.search.kernels import ProgramSketch
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.settings import Setting, View
from mirage_kernels.generator.search.verify import (
    Case,
    compare,
    log2_failure,
    prove,
    random_inputs,
    seen_dims,
    small_cases,
    small_tiles,
)

SHAPE = Shape("a test", {"K": 72, "N": 40})
VIEWS = (
    View("x", (None, "M"), "K"),
    View("norm_weight", (None, None), "K"),
    View("weight", ("N", None), "K"),
    View("eps", (None, None), None),
)


def one_kernel(recipe: Recipe, *steps: str) -> tuple[Graph, Graph]:
    """Return the spec and a candidate: steps such as "contract 0 5 K" in one looped kernel."""
    made = []
    for text in steps:
        op, *words = text.split()
        numbers = tuple(int(w) for w in words if w.isdigit())
        made.append(Step(op, numbers, "".join(w for w in words if not w.isdigit())))
    sketch = BlockSketch(Setting(("N", "M"), "K", VIEWS), ("size_K",), tuple(made), ("M", "N"))
    spec = trace(recipe, SHAPE, DType.FP16)
    goal = Goal(spec, output_type(recipe, SHAPE, DType.FP16), DType.FP16, small_tiles(spec))
    return spec, lower(ProgramSketch((sketch,)), goal)


NORM = ("div 9 4", "add 3 10", "sqrt 11", "div 7 12")
RIGHT = {
    "scaled weight": ("mul 1 2", "contract 0 5 K", "accum 6", "contract 0 0 K", "accum 8", *NORM),
    "scaled x": ("mul 0 1", "contract 2 5 K", "accum 6", "contract 0 0 K", "accum 8", *NORM),
    "operands turned round": (
        *("mul 2 1", "contract 5 0 K", "accum 6", "contract 0 0 K", "accum 8"),
        *("div 9 4", "add 10 3", "sqrt 11", "div 7 12"),
    ),
    "the mean inside the loop": (
        *("mul 1 2", "contract 0 5 K", "accum 6", "contract 0 0 K", "div 8 4", "accum 9"),
        *("add 3 10", "sqrt 11", "div 7 12"),
    ),
    "squares as a product and a sum": (
        *("mul 1 2", "contract 0 5 K", "accum 6", "mul 0 0", "sum 8 K", "accum 9"),
        *("div 10 4", "add 3 11", "sqrt 12", "div 7 13"),
    ),
}
WRONG = {
    "division before the sum is complete": (
        *("mul 1 2", "contract 0 5 K", "contract 0 0 K", "div 7 4", "add 3 8", "sqrt 9"),
        *("div 6 10", "accum 11"),
    ),
    "no norm weight": (
        "contract 0 2 K",
        "accum 5",
        "contract 0 0 K",
        "accum 7",
        "div 8 4",
        "add 3 9",
        "sqrt 10",
        "div 6 11",
    ),
    "the norm weight twice": (
        "mul 1 2",
        "mul 1 5",
        "contract 0 6 K",
        "accum 7",
        "contract 0 0 K",
        "accum 9",
        "div 10 4",
        "add 3 11",
        "sqrt 12",
        "div 8 13",
    ),
    "no eps": (
        "mul 1 2",
        "contract 0 5 K",
        "accum 6",
        "contract 0 0 K",
        "accum 8",
        "div 9 4",
        "sqrt 10",
        "div 7 11",
    ),
    "eps beside the root": (
        "mul 1 2",
        "contract 0 5 K",
        "accum 6",
        "contract 0 0 K",
        "accum 8",
        "div 9 4",
        "sqrt 10",
        "add 3 11",
        "div 7 12",
    ),
    "eps added in every step": (
        "mul 1 2",
        "contract 0 5 K",
        "accum 6",
        "contract 0 0 K",
        "add 3 8",
        "accum 9",
        "div 10 4",
        "sqrt 11",
        "div 7 12",
    ),
    "a sum in place of a mean": (
        "mul 1 2",
        "contract 0 5 K",
        "accum 6",
        "contract 0 0 K",
        "accum 8",
        "add 3 9",
        "sqrt 10",
        "div 7 11",
    ),
    "squares of the scaled x": (
        "mul 0 1",
        "contract 2 5 K",
        "accum 6",
        "contract 5 5 K",
        "accum 8",
        *NORM,
    ),
    "a product in place of the division": (
        "mul 1 2",
        "contract 0 5 K",
        "accum 6",
        "contract 0 0 K",
        "accum 8",
        "div 9 4",
        "add 3 10",
        "sqrt 11",
        "mul 7 12",
    ),
    "the square of the sum": (
        "mul 1 2",
        "contract 0 5 K",
        "accum 6",
        "sum 0 K",
        "accum 8",
        "mul 9 9",
        "div 10 4",
        "add 3 11",
        "sqrt 12",
        "div 7 13",
    ),
}


@pytest.mark.parametrize("what", RIGHT)
def test_a_correct_rewrite_is_accepted(rms_norm_linear: Recipe, what: str) -> None:
    spec, candidate = one_kernel(rms_norm_linear, *RIGHT[what])
    assert prove(spec, candidate, small_cases(spec), seed=1)


@pytest.mark.parametrize("what", WRONG)
def test_a_planted_wrong_candidate_is_rejected(rms_norm_linear: Recipe, what: str) -> None:
    spec, candidate = one_kernel(rms_norm_linear, *WRONG[what])
    with pytest.raises(VerifyError, match="not equal to its recipe"):
        prove(spec, candidate, small_cases(spec), seed=1)


def test_early_division_is_right_when_there_is_a_single_step(rms_norm_linear: Recipe) -> None:
    spec, candidate = one_kernel(rms_norm_linear, *WRONG["division before the sum is complete"])
    single = Case({"M": 2, "K": 3, "N": 4}, {"M": 5, "K": 3, "N": 9})
    assert compare(spec, candidate, single, seed=1)


@pytest.mark.parametrize("tile", range(1, 9))
def test_no_tile_size_changes_the_meaning(right: tuple[Graph, Graph], tile: int) -> None:
    spec, candidate = right
    sizes = {"M": 3, "K": 7, "N": 5}
    for dim in sizes:
        assert compare(spec, candidate, Case({"M": 2, "K": 3, "N": 4} | {dim: tile}, sizes), seed=1)


def test_a_refusal_names_the_first_difference_and_how_to_repeat_it(rms_norm_linear: Recipe) -> None:
    spec, candidate = one_kernel(rms_norm_linear, *WRONG["no eps"])
    with pytest.raises(VerifyError) as caught:
        prove(spec, candidate, small_cases(spec), seed=7)
    assert caught.value.sentence == (
        "not equal to its recipe: 45 of 45 results differ, first at M=0, N=0 "
        "(extents M=5, K=7, N=9, tiles M=2, K=3, N=4, seed 7)"
    )


@pytest.fixture(scope="module")
def right(rms_norm_linear: Recipe) -> tuple[Graph, Graph]:
    return one_kernel(rms_norm_linear, *RIGHT["scaled weight"])


def test_a_proof_holds_one_draw_per_case(right: tuple[Graph, Graph]) -> None:
    spec, candidate = right
    cases = small_cases(spec)
    draws = prove(spec, candidate, cases, seed=5).draws
    assert [(d.tiles, d.sizes) for d in draws] == [(c.tiles, c.sizes) for c in cases]


def test_every_draw_has_its_own_seed_and_a_safe_prime(right: tuple[Graph, Graph]) -> None:
    spec, candidate = right
    draws = prove(spec, candidate, small_cases(spec), seed=5).draws
    assert [d.seed for d in draws] == [5, 6, 7]
    assert {d.prime for d in draws} <= set(SAFE_PRIMES)


def test_the_same_seed_gives_the_same_proof(right: tuple[Graph, Graph]) -> None:
    spec, candidate = right
    proofs = [prove(spec, candidate, small_cases(spec), seed=5) for _ in range(2)]
    assert proofs[0] == proofs[1]


def test_a_proof_bounds_the_probability_of_a_wrong_candidate(right: tuple[Graph, Graph]) -> None:
    spec, candidate = right
    assert prove(spec, candidate, small_cases(spec), seed=5).log2_failure < -60


def test_bounds_of_independent_draws_multiply(right: tuple[Graph, Graph]) -> None:
    spec, candidate = right
    (case, *_) = small_cases(spec)
    one, three = (log2_failure(spec, candidate, [case] * n) for n in (1, 3))
    assert math.isclose(three, 3 * one, abs_tol=0.2)


def test_the_bound_is_that_of_the_tiles_drawn_least_often(right: tuple[Graph, Graph]) -> None:
    spec, candidate = right
    (case, *_) = small_cases(spec)
    rare = replace(case, tiles={d: n + 1 for d, n in case.tiles.items()})
    assert log2_failure(spec, candidate, [case] * 3 + [rare]) == log2_failure(
        spec, candidate, [rare]
    )


def test_dims_are_seen_in_order_of_appearance(right: tuple[Graph, Graph]) -> None:
    assert seen_dims(right[0]) == ("M", "K", "N")


def test_no_two_dims_have_the_same_small_tile(right: tuple[Graph, Graph]) -> None:
    tiles = small_tiles(right[0])
    assert len(set(tiles.values())) == len(tiles)


def test_small_cases_are_uneven_within_one_tile_and_even(right: tuple[Graph, Graph]) -> None:
    rests = [
        [(c.sizes[d] // c.tiles[d], bool(c.sizes[d] % c.tiles[d])) for d in c.tiles]
        for c in small_cases(right[0])
    ]
    assert rests == [[(2, True)] * 3, [(0, True)] * 3, [(3, False)] * 3]


def spec_of(inputs: Mapping[str, str], made: object) -> Graph:
    builder = Builder(Level.KERNEL)
    sizes = {"M": Dim("M", 8, dynamic=True), "K": Dim("K", 6), "N": Dim("N", 4)}
    tensors = [
        Tensor(builder, builder.input(name, TensorType(tuple(sizes[d] for d in dims), DType.FP16)))
        for name, dims in inputs.items()
    ]
    assert callable(made)
    return builder.graph([made(*tensors).name])


SOFTMAX = spec_of({"x": "MK", "v": "NK"}, lambda x, v: contract(exp(x) / sum(exp(x), "K"), v, "K"))
LATE = spec_of({"x": "MK", "v": "NK"}, lambda x, v: contract(exp(x), v, "K") / sum(exp(x), "K"))
UNNORMED = spec_of({"x": "MK", "v": "NK"}, lambda x, v: contract(exp(x), v, "K"))


def test_late_division_of_a_softmax_is_accepted() -> None:
    assert prove(SOFTMAX, LATE, small_cases(SOFTMAX), seed=1)


def test_a_softmax_without_its_division_is_rejected() -> None:
    with pytest.raises(VerifyError, match="not equal"):
        prove(SOFTMAX, UNNORMED, small_cases(SOFTMAX), seed=1)


def test_a_proof_with_exp_claims_no_bound() -> None:
    assert prove(SOFTMAX, LATE, small_cases(SOFTMAX), seed=1).log2_failure == 0.0


def test_a_candidate_without_a_law_in_the_field_is_refused() -> None:
    twice = spec_of({"x": "MK", "v": "NK"}, lambda x, v: contract(exp(exp(x)), v, "K"))
    with pytest.raises(VerifyError, match="cannot be evaluated: exp of a value"):
        prove(SOFTMAX, twice, small_cases(SOFTMAX), seed=1)


@pytest.mark.parametrize("name", catalog())
def test_every_recipe_proves_equal_to_itself(name: str) -> None:
    recipe = catalog()[name]
    spec = trace(recipe, recipe.shapes[0], DType.FP16)
    sizes = {d: 2 + i for i, d in enumerate(seen_dims(spec))}
    assert compare(spec, spec, Case({}, sizes), seed=3)


def test_lengths_are_whole_numbers_of_at_least_one() -> None:
    recipe = catalog()["gqa"]
    spec = trace(recipe, recipe.shapes[0], DType.FP16)
    sizes = {d: 2 + i for i, d in enumerate(seen_dims(spec))}
    drawn = random_inputs(spec, sizes, draw_field(0, exponents=True), seed=0)
    (lengths,) = (a for a in drawn if not a.real)
    assert np.issubdtype(lengths.parts[0].dtype, np.integer)
    assert lengths.parts[0].min() >= 1
