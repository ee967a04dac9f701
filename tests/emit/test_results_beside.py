"""KernelRecord kernels with a result beside the output: golden, formatted, and run in Triton."""

from __future__ import annotations

import numpy as np
import pytest
from compilers import formatted
from handmade_lines import K, N, record
from sources import source

from mirage_kernels.generator.bench.demonstrate import triton_results
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.meaning.arrays import Array
from mirage_kernels.generator.meaning.reals import round_to
from mirage_kernels.generator.records.record import KernelRecord

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


@pytest.fixture(scope="module")
def made() -> KernelRecord:
    return record("rms_norm_linear_residual")


def joined(text: str) -> str:
    return " ".join(text.replace("//", "").split())


def test_the_cuda_file_is_formatted_as_clang_format_would(made: KernelRecord) -> None:
    text = source(made, "cu")
    assert text == formatted(text)


def test_the_header_says_what_is_stored(made: KernelRecord) -> None:
    text = joined(source(made, "cu"))
    assert "out [M, N] contiguous, total [M, K] contiguous; any M >= 0." in text


def test_every_block_stores_its_share_of_what_products_take(made: KernelRecord) -> None:
    text = source(made, "cu")
    assert "tile::add<T>(step.x_tile, step.residual_tile);" in text
    assert "tile::contract(scaled_product, scaled_weight, total_tile);" in text
    assert "tile::store_share<kEvenDepth>(total, {first_token, M, K}, total_tile, k);" in text
    assert '#include "tile/sliced_k/store_share.cuh"' in text


def drawn(integers: bool) -> dict[str, np.ndarray]:
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


def test_small_integers_come_out_bit_for_bit_from_triton(made: KernelRecord) -> None:
    given = drawn(integers=True)
    for found, wanted in zip(run(made, given), exact(given), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_triton_program_is_close_to_float64_and_rounds_the_sum_once(
    made: KernelRecord,
) -> None:
    given = drawn(integers=False)
    (out, total), (y, sums) = run(made, given), exact(given)
    np.testing.assert_array_equal(total, np.asarray(round_to(sums, DType.FP16), np.float64))
    assert np.linalg.norm(out - y) < 1e-3 * np.linalg.norm(y)
