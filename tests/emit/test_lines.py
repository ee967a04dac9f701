"""Kernels with lines, or a result beside the output: formatted, and run as Triton programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from compilers import formatted
from handmade_lines import K, N, record
from sources import error, foreign_forms, source

from mirage_kernels.generator.bench.demonstrate import run_triton, triton_results
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.meaning.reals import round_to
from mirage_kernels.generator.records.record import KernelRecord

RESIDUAL = "rms_norm_linear_residual"
NAMES = ("ntrans", "layer_norm_linear", "rms_norm_residual", "silu_and_mul", RESIDUAL)

M = 19
INPUTS = {
    "x": ("M", "K"),
    "norm_weight": ("K",),
    "weight": ("N", "K"),
    "eps": (),
    "bias": ("N",),
    "residual": ("M", "K"),
    "weight_offset": (),
}
SIZES = {"M": M, "K": K, "N": N}
each_name = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def records() -> dict[str, KernelRecord]:
    return {name: record(name) for name in NAMES}


@pytest.mark.parametrize("name", ["ntrans", "layer_norm_linear", "silu_and_mul"])
def test_a_small_shape_has_the_forms_of_the_library(
    records: dict[str, KernelRecord], name: str
) -> None:
    assert foreign_forms(records[name]) == []


@each_name
def test_the_cuda_file_is_formatted_as_clang_format_would(
    records: dict[str, KernelRecord], name: str
) -> None:
    text = source(records[name], "cu")
    assert text == formatted(text)


def test_the_header_of_lines_says_what_they_expect(records: dict[str, KernelRecord]) -> None:
    text = " ".join(source(records["ntrans"], "cu").replace("//", "").split())
    assert "alpha [K] contiguous" in text


def test_a_vector_that_may_be_absent_reads_as_zeros(records: dict[str, KernelRecord]) -> None:
    made = records["layer_norm_linear"]
    assert "tile::depth_edge<kEvenDepth>(norm_bias, K)" in source(made, "cu")
    nodes = tuple(replace(n, optional=n.name == "norm_bias") for n in made.graph.nodes)
    optional = replace(made, graph=replace(made.graph, nodes=nodes))
    assert "tile::optional_edge(norm_bias, K)" in source(optional, "cu")


def drawn(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return np.asarray(round_to(rng.standard_normal(shape), DType.FP16), np.float64)


def test_the_triton_program_of_ntrans_is_close_to_float64(
    records: dict[str, KernelRecord],
) -> None:
    h, x, alpha = drawn(5, K), drawn(5, K) + 1, drawn(K)
    inputs = [Array(("M", "K"), (h,)), Array(("M", "K"), (x,)), Array(("K",), (alpha,))]
    moved = h + alpha * (x / np.linalg.norm(x, axis=1, keepdims=True) - h)
    exact = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    assert error(run_triton(records["ntrans"], inputs), exact) < 5e-4


def test_the_triton_program_of_a_norm_returns_the_sum_as_well(
    records: dict[str, KernelRecord],
) -> None:
    x, norm_weight, residual = drawn(5, K), drawn(K), drawn(3, K)[:1].repeat(5, 0)
    dims = (("M", "K"), ("K",), (), ("M", "K"), ())
    values = (x, norm_weight, np.asarray(1e-6), residual, np.asarray(1.0))
    inputs = [Array(d, (v,)) for d, v in zip(dims, values, strict=True)]
    total = x + residual
    root = np.sqrt((total**2).mean(1, keepdims=True) + 1e-6)
    made = run_triton(records["rms_norm_residual"], inputs)
    assert error(made, total / root * (norm_weight + 1)) < 5e-4


def test_the_triton_program_of_parts_is_close_to_float64(
    records: dict[str, KernelRecord],
) -> None:
    gate, up = drawn(5, N), drawn(6, N)[1:]
    inputs = [Array(("M", "N"), (v,)) for v in (gate, up)]
    exact = gate / (1 + np.exp(-gate)) * up
    assert error(run_triton(records["silu_and_mul"], inputs), exact) < 5e-4


def test_a_formula_too_long_for_a_line_takes_a_name_for_what_it_is_of() -> None:
    made = record("gelu_tanh_and_mul")
    text = source(made, "py")
    assert "wide = gate_tile.to(tl.float32)" in text
    assert max(map(len, text.splitlines())) <= 100
    gate, up = drawn(5, N), drawn(6, N)[1:]
    inputs = [Array(("M", "N"), (v,)) for v in (gate, up)]
    inner = 0.7978845608028654 * (gate + 0.044715 * gate**3)
    assert error(run_triton(made, inputs), gate / 2 * (1 + np.tanh(inner)) * up) < 5e-4


def test_the_triton_program_of_layer_norm_is_close_to_float64(
    records: dict[str, KernelRecord],
) -> None:
    x, weight, eps = drawn(19, K) + 3, drawn(N, K), 1e-5
    norm_weight, norm_bias = drawn(K) + 1, drawn(K) * 0.5
    held = [np.asarray(round_to(a, DType.FP16), np.float64) for a in (x, norm_weight, norm_bias)]
    x, norm_weight, norm_bias = held
    dims = (("M", "K"), ("K",), ("K",), ("N", "K"), ())
    values = (x, norm_weight, norm_bias, weight, np.asarray(eps))
    inputs = [Array(d, (v,)) for d, v in zip(dims, values, strict=True)]
    centred = x - x.mean(1, keepdims=True)
    root = np.sqrt((centred**2).mean(1, keepdims=True) + eps)
    exact = (centred / root * norm_weight + norm_bias) @ weight.T
    assert error(run_triton(records["layer_norm_linear"], inputs), exact) < 1e-3


# -- a result beside the output --------------------------------------------------------------------


def test_the_header_says_what_is_stored(records: dict[str, KernelRecord]) -> None:
    text = " ".join(source(records[RESIDUAL], "cu").replace("//", "").split())
    assert "out [M, N] contiguous, total [M, K] contiguous; any M >= 0." in text


def test_every_block_stores_its_share_of_what_products_take(
    records: dict[str, KernelRecord],
) -> None:
    text = source(records[RESIDUAL], "cu")
    assert "tile::add<T>(step.x_tile, step.residual_tile);" in text
    assert "tile::contract(scaled_product, scaled_weight, total_tile);" in text
    assert "tile::store_share<kEvenDepth>(total, {first_token, M, K}, total_tile, k);" in text
    assert '#include "tile/sliced_k/store_share.cuh"' in text


def drawn_inputs(integers: bool) -> dict[str, np.ndarray]:
    """Draw inputs; integers such that x + residual is +1 and -1, so that the norm divides by 1."""
    rng = np.random.default_rng(3)
    found = {}
    for name, dims in INPUTS.items():
        shape = [SIZES[d] for d in dims]
        data = rng.integers(-2, 3, shape) if integers else rng.standard_normal(shape)
        found[name] = np.asarray(round_to(np.asarray(data, np.float64), DType.FP16), np.float64)
    found["eps"] = np.asarray(0.0 if integers else 1e-6)
    found["weight_offset"] = np.asarray(1.0)
    if integers:
        found["x"] = rng.choice([-1.0, 1.0], (M, K)) - found["residual"]
    return found


def exact(given: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    total = given["x"] + given["residual"]
    root = np.sqrt((total**2).mean(1, keepdims=True) + given["eps"])
    normed = total / root * (given["norm_weight"] + given["weight_offset"])
    return normed @ given["weight"].T + given["bias"], total


def run(made: KernelRecord, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    return triton_results(made, [Array(dims, (given[n],)) for n, dims in INPUTS.items()])


def test_small_integers_come_out_bit_for_bit_from_triton(records: dict[str, KernelRecord]) -> None:
    given = drawn_inputs(integers=True)
    for found, wanted in zip(run(records[RESIDUAL], given), exact(given), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_triton_program_is_close_to_float64_and_rounds_the_sum_once(
    records: dict[str, KernelRecord],
) -> None:
    given = drawn_inputs(integers=False)
    (out, total), (y, sums) = run(records[RESIDUAL], given), exact(given)
    np.testing.assert_array_equal(total, np.asarray(round_to(sums, DType.FP16), np.float64))
    assert np.linalg.norm(out - y) < 1e-3 * np.linalg.norm(y)
