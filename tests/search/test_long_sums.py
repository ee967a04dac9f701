"""Bounds of proofs where sums are too long for one: made again with shorter ones."""

from __future__ import annotations

from handmade_lines import mugraph, shape_of

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.recipe import load_recipe, trace
from mirage_kernels.generator.search.cases import Case
from mirage_kernels.generator.search.verify import LOG2_WANTED, Prover

TILES = {"M": 8, "N": 16, "K": 512}


def test_a_bounded_case_with_long_sums_is_drawn_again_at_a_tile_and_an_edge() -> None:
    recipe = load_recipe("layer_norm_linear")
    prover = Prover(trace(recipe, shape_of(recipe), DType.FP16))
    case = Case(TILES, {"M": 9, "N": 17, "K": 1032}, bounded=True)
    proof = prover.prove(mugraph("layer_norm_linear"), [case], seed=1)
    assert [c.sizes["K"] for c in proof.cases] == [1032, 513]
    assert proof.cases[0].log2_failure == 0
    assert proof.log2_failure <= LOG2_WANTED


def test_a_case_that_has_a_bound_is_drawn_as_it_is() -> None:
    recipe = load_recipe("layer_norm_linear")
    prover = Prover(trace(recipe, shape_of(recipe), DType.FP16))
    case = Case(TILES, {"M": 9, "N": 17, "K": 520}, bounded=True)
    proof = prover.prove(mugraph("layer_norm_linear"), [case], seed=1)
    assert [c.sizes["K"] for c in proof.cases] == [520]
