"""Full extents are drawn where that is affordable; else there are fewer rows."""

from __future__ import annotations

from attention import attention

from mirage_kernels.generator.ir import DType, Graph, retile
from mirage_kernels.generator.recipe import Shape, load_recipe, trace
from mirage_kernels.generator.search.cases import MOST_ELEMENTS, affordable, full_cases

TILES = {"N": 64, "M": 8, "K": 512}


def spec(recipe: str, **dims: int) -> Graph:
    return trace(load_recipe(recipe), Shape("a test", dims), DType.FP16)


def test_what_is_affordable_is_drawn_whole() -> None:
    sizes = {"M": 11, "K": 8192, "N": 10240}
    assert sizes["K"] * sizes["N"] < MOST_ELEMENTS
    assert affordable(spec("rms_norm_linear", K=8192, N=10240), sizes, TILES) == sizes


def test_beyond_that_rows_are_two_tiles_and_an_edge() -> None:
    sizes = {"M": 11, "K": 8192, "N": 28672}
    cut = affordable(spec("gated_mlp", K=8192, N=28672), sizes, TILES)
    assert cut == {"M": 11, "K": 8192, "N": 2 * 64 + 5}


def test_what_is_summed_along_is_never_cut() -> None:
    sizes = {"M": 11, "K": 30_000, "N": 64_000, "R": 4000}
    graph = spec("lora_linear", K=30_000, N=64_000, R=4000)
    cut = affordable(graph, sizes, TILES | {"R": 16})
    assert (cut["K"], cut["R"]) == (30_000, 4000)


def test_few_rows_are_not_made_more() -> None:
    sizes = {"M": 3, "K": 2_000_000, "N": 100}
    assert affordable(spec("relu2_mlp", K=2_000_000, N=100), sizes, TILES) == sizes


def test_dims_that_number_rows_or_problems_are_few_in_draws() -> None:
    tiles = {"B": 1, "Hkv": 1, "L": 256, "L_parts": 1024}
    graph = retile(attention(spec("gqa", D=128), "gqa", "split"), tiles)
    full = full_cases(graph)[0].sizes
    assert full == {"B": 2, "Hkv": 2, "G": 2, "D": 128, "L": 2 * 1024 + 5}
