"""What a recipe is compared on: small extents and tiles, how many draws, which lengths."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import spec_of

from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.language import (
    Tensor,
    contract,
    exp,
    extent,
    positions,
    sum,
    where,
)
from mirage_kernels.generator.meaning.field import draw_field
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, trace
from mirage_kernels.generator.search.cases import seen_dims, small_cases, small_tiles
from mirage_kernels.generator.search.verify import (
    LOG2_WANTED,
    MOST_DRAWS,
    Compared,
    Proof,
    Prover,
    draws_needed,
    prove,
    whole_numbers,
)


@pytest.fixture(scope="module")
def spec(rms_norm_linear: Recipe) -> Graph:
    return trace(rms_norm_linear, Shape("a test", {"K": 72, "N": 40}), DType.FP16)


def entry(log2_failure: float) -> Compared:
    return Compared({}, {}, 0, 1, log2_failure)


def test_the_bound_is_the_weakest_that_was_reached() -> None:
    assert Proof.of([entry(-3), entry(-41), entry(-77)]).log2_failure == -41


def test_the_bound_is_the_weakest_of_all_where_none_was_reached() -> None:
    assert Proof.of([entry(-3), entry(-39)]).log2_failure == -3


@pytest.mark.parametrize(("chance", "draws"), [(-40, 1), (-28.4, 2), (-2.33, 18), (-0.7, 58)])
def test_so_many_draws_reach_the_bound(chance: float, draws: int) -> None:
    assert draws_needed(chance) == draws


@pytest.mark.parametrize("chance", [0.0, -0.1, LOG2_WANTED / (MOST_DRAWS + 1)])
def test_where_too_many_draws_would_be_needed_one_is_made(chance: float) -> None:
    assert draws_needed(chance) == 1


def test_dims_are_seen_in_order_of_appearance(spec: Graph) -> None:
    assert seen_dims(spec) == ("M", "K", "N")


def test_no_two_dims_have_the_same_small_tile(spec: Graph) -> None:
    tiles = [small_tiles(spec)[d] for d in seen_dims(spec)]
    assert len(set(tiles)) == len(tiles)


def test_small_cases_are_within_one_tile_uneven_and_even(spec: Graph) -> None:
    rests = [
        [(c.sizes[d] // c.tiles[d], bool(c.sizes[d] % c.tiles[d])) for d in seen_dims(spec)]
        for c in small_cases(spec)
    ]
    # The sum along K takes three steps where M and N have two tiles.
    assert rests[0] == [(0, True)] * 3
    assert rests[1] == [(1, True), (2, True), (1, True)]
    assert rests[2] == [(2, False)] * 3


def test_parts_of_a_split_sum_are_uneven_and_hold_several_steps(spec: Graph) -> None:
    case = small_cases(spec)[1]
    part, step = case.tiles["K_parts"], case.tiles["K"]
    assert (case.sizes["K"] // part, case.sizes["K"] % part) == (1, step)
    assert step < part < 2 * step


def test_an_even_case_has_a_part_that_is_shorter_than_a_step(spec: Graph) -> None:
    case = small_cases(spec)[2]
    assert 0 < case.sizes["K"] % case.tiles["K_parts"] < case.tiles["K"]


def test_all_lengths_of_a_range_are_drawn_where_there_is_room() -> None:
    drawn = whole_numbers(range(1, 6), (2, 5), np.random.default_rng(0))
    assert sorted(drawn.ravel().tolist()) == sorted([*range(1, 6)] * 2)


def test_a_bounded_case_sees_every_length() -> None:
    recipe = catalog()["gqa"]
    spec = trace(recipe, recipe.shapes[0], DType.FP16)
    (bounded,) = [c for c in small_cases(spec) if c.bounded]
    drawn = Prover(spec).random_inputs(
        bounded.sizes, draw_field(0, exponents=True), (0, 0), raised={}
    )
    (lengths,) = (a for a in drawn if not a.real)
    assert sorted(lengths.parts[0].tolist()) == [1, 2, 3, 4, 5]


def test_a_window_is_drawn_of_every_width_with_every_length() -> None:
    """Short lengths leave nothing to sum and are raised; the window, which may be 1, is not."""
    recipe = catalog()["sliding_window_attention"]
    spec = trace(recipe, recipe.shapes[0], DType.FP16)
    (bounded,) = [c for c in small_cases(spec) if c.bounded]
    drawn: dict[str, set[int]] = {"seq_lens": set(), "window": set()}
    for seed in range(bounded.sizes["L"]):
        inputs = Prover(spec).reference(bounded.sizes, seed).inputs
        for node, values in zip(spec.inputs, inputs, strict=True):
            if node.name in drawn:
                drawn[node.name] |= {int(v) for v in values.parts[0].ravel()}
    assert drawn == {"seq_lens": {2, 3, 4, 5}, "window": {1, 2, 3, 4, 5}}


def test_tokens_of_a_causal_recipe_are_no_more_than_its_keys() -> None:
    def causal(x: Tensor, q: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        token = lengths - extent(q, "T") + positions(q, "T")
        weights = where(positions(x, "K") <= token, exp(x), 0)
        return contract(weights / sum(weights, "K"), v, "K")

    spec = spec_of({"x": "MTK", "q": "MT", "v": "NK", "lengths": "M:int32"}, causal)
    assert all(c.sizes["T"] <= c.sizes["K"] for c in small_cases(spec))
    assert prove(spec, spec, small_cases(spec), seed=1)


SOFTMAX = spec_of({"x": "MK", "v": "NK"}, lambda x, v: contract(exp(x) / sum(exp(x), "K"), v, "K"))


def test_bounded_sums_of_powers_are_short() -> None:
    (bounded,) = [c for c in small_cases(SOFTMAX) if c.bounded]
    assert (bounded.sizes["K"], bounded.tiles["K"], bounded.tiles["K_parts"]) == (5, 2, 3)
