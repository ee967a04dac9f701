"""Kernels written by hand as CUDA: with an adapter, with lines, with a result beside the output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from compilers import assembled, formatted
from handmade_lines import record
from sources import foreign_forms, source, written

from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.records.record import KernelRecord, load_record

Adapted = Callable[..., KernelRecord]
RESIDUAL = "rms_norm_linear_residual"
NAMES = ("ntrans", "layer_norm_linear", "rms_norm_residual", "silu_and_mul", RESIDUAL)
DIMS = {"K": 72, "N": 40, "R": 8}


@cache
def cuda(name: str) -> str:
    return source(record(name), "cu")


def words(text: str) -> str:
    """Return a text with comments in one line."""
    return " ".join(text.replace("//", "").split())


# -- an adapter ------------------------------------------------------------------------------------


def test_a_record_keeps_its_inner_dims(adapted_record: Adapted, tmp_path: Path) -> None:
    made, path = adapted_record(DIMS), tmp_path / "record.json"
    path.write_text(made.text())
    assert made.roles.inner == ("R",)
    assert load_record(path) == made


def test_weights_are_contiguous_and_fetched_before_the_loop(adapted_record: Adapted) -> None:
    text = source(adapted_record(DIMS), "cu")
    fetch, loop = text.index("tile::fetch"), text.index("tile::pipeline")
    assert fetch < loop < text.index("tile::wait_copies<0>();")
    assert ", {1, Shape::K}, {2, Shape::K}, {3, Shape::R})" in text


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_kernel_spills_no_registers(adapted_record: Adapted, tmp_path: Path, arch: str) -> None:
    made = adapted_record({"K": 4096, "N": 4096, "R": 24}, DType.BF16, arch)  # needs most registers
    kernels = assembled(written(made, tmp_path), arch, tmp_path)
    assert [kernel.spill_bytes for kernel in kernels] == [0] * 4


# -- lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ntrans", "layer_norm_linear", "silu_and_mul"])
def test_a_small_shape_has_the_forms_of_the_library(name: str) -> None:
    assert foreign_forms(record(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_formatted_as_clang_format_would(name: str) -> None:
    assert cuda(name) == formatted(cuda(name))


def test_a_vector_that_may_be_absent_reads_as_zeros() -> None:
    assert "tile::depth_edge<kEvenDepth>(norm_bias, K)" in cuda("layer_norm_linear")
    made = record("layer_norm_linear")
    nodes = tuple(replace(n, optional=n.name == "norm_bias") for n in made.graph.nodes)
    optional = replace(made, graph=replace(made.graph, nodes=nodes))
    assert "tile::optional_edge(norm_bias, K)" in source(optional, "cu")


def test_the_header_says_what_lines_expect_and_what_is_stored() -> None:
    assert "alpha [K] contiguous" in words(cuda("ntrans"))
    assert "out [M, N] contiguous, total [M, K] contiguous; any M >= 0." in words(cuda(RESIDUAL))


def test_every_block_stores_its_share_of_what_products_take() -> None:
    for line in (
        "tile::add<T>(step.x_tile, step.residual_tile);",
        "tile::contract(scaled_product, scaled_weight, total_tile);",
        "tile::store_share<kEvenDepth>(total, {first_token, M, K}, total_tile, k);",
        '#include "tile/sliced_k/store_share.cuh"',
    ):
        assert line in cuda(RESIDUAL)
