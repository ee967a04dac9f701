"""What a recipe is compared on: extents and tiles, how many draws, which lengths."""

from __future__ import annotations

import pytest
from attention import attention
from handmade_lines import mugraph, shape_of
from small import Small

from mirage_kernels.generator.ir import DType, Graph, retile
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
from mirage_kernels.generator.recipe import Recipe, Shape, catalog, load_recipe, trace
from mirage_kernels.generator.search.cases import (
    Case,
    affordable,
    full_cases,
    seen_dims,
    small_cases,
)
from mirage_kernels.generator.search.verify import (
    LOG2_WANTED,
    Compared,
    Proof,
    Prover,
    draws_needed,
    prove,
)


@pytest.fixture(scope="module")
def spec(rms_norm_linear: Recipe) -> Graph:
    return trace(rms_norm_linear, Shape("a test", {"K": 72, "N": 40}), DType.FP16)


def entry(log2_failure: float) -> Compared:
    return Compared({}, {}, 0, 1, log2_failure)


def test_the_bound_is_the_weakest_that_was_reached() -> None:
    assert Proof.of([entry(-3), entry(-41), entry(-77)]).log2_failure == -41


@pytest.mark.parametrize(("chance", "draws"), [(-40, 1), (-28.4, 2), (-0.7, 58), (-0.1, 1), (0, 1)])
def test_so_many_draws_reach_the_bound_or_one_is_made(chance: float, draws: int) -> None:
    assert draws_needed(chance) == draws


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

    spec = Small({"x": "MTK", "q": "MT", "v": "NK", "lengths": "M:int32"}, causal).spec()
    assert all(c.sizes["T"] <= c.sizes["K"] for c in small_cases(spec))
    assert prove(spec, spec, small_cases(spec), seed=1)


@pytest.mark.parametrize(("extent", "drawn"), [(1032, [1032, 513]), (520, [520])])
def test_sums_too_long_for_a_bound_are_drawn_again_at_a_tile_and_an_edge(
    extent: int, drawn: list[int]
) -> None:
    recipe = load_recipe("layer_norm_linear")
    prover = Prover(trace(recipe, shape_of(recipe), DType.FP16))
    tiles = {"M": 8, "N": 16, "K": 512}
    case = Case(tiles, {"M": 9, "N": 17, "K": extent}, bounded=True)
    proof = prover.prove(mugraph("layer_norm_linear"), [case], seed=1)
    assert [c.sizes["K"] for c in proof.cases] == drawn
    assert [c.log2_failure <= LOG2_WANTED for c in proof.cases] == [n == drawn[-1] for n in drawn]


def traced(recipe: str, **dims: int) -> Graph:
    return trace(load_recipe(recipe), Shape("a test", dims), DType.FP16)


@pytest.mark.parametrize(
    ("recipe", "sizes", "cut"),
    [
        ("rms_norm_linear", {"K": 4096, "N": 1008}, {}),
        ("rms_norm_linear", {"K": 4096, "N": 6144}, {"N": 2 * 64 + 5}),
        ("rms_norm_linear", {"K": 8192, "N": 10240}, {"N": 2 * 64 + 5}),
        ("gated_mlp", {"K": 8192, "N": 28672}, {"N": 2 * 64 + 5}),
        ("lora_linear", {"K": 30_000, "N": 64_000, "R": 4000}, {"N": 2 * 64 + 5}),
    ],
)
def test_rows_beyond_what_is_affordable_are_two_tiles_and_an_edge(
    recipe: str, sizes: dict[str, int], cut: dict[str, int]
) -> None:
    tiles = {"N": 64, "M": 8, "K": 512, "R": 16}
    given = {"M": 11, **sizes}
    assert affordable(traced(recipe, **sizes), given, tiles) == given | cut


def test_contractions_that_would_take_long_have_fewer_problems() -> None:
    tiles = {"B": 1, "Hkv": 1, "L": 256, "L_parts": 1024}
    graph = retile(attention(traced("gqa", D=128), "split"), tiles)
    given = {"B": 4, "Hkv": 8, "G": 4, "D": 128, "L": 453}
    assert affordable(graph, given, tiles, 2**26) == given
    assert affordable(graph, given, tiles, 2**20) == given | {"B": 3, "Hkv": 3}


def test_dims_that_number_rows_or_problems_are_few_in_draws() -> None:
    tiles = {"B": 1, "Hkv": 1, "L": 256, "L_parts": 1024}
    graph = retile(attention(traced("gqa", D=128), "split"), tiles)
    full = full_cases(graph)[0].sizes
    assert full == {"B": 2, "Hkv": 2, "G": 2, "D": 128, "L": 2 * 1024 + 5}
