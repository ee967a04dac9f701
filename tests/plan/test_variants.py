"""Variants: knobs from the target, compared with brute force, within the target's limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, Roles, TileProgram
from mirage_kernels.generator.recipe import Shape, catalog
from mirage_kernels.generator.schedules.choose import registers, shared_bytes, variants
from mirage_kernels.generator.schedules.loop import BUCKETS, REGISTERS_LEFT, rows_for
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.sliced_k.knobs import Footprint, Kept, SlicedK
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
ON = target("sm_90a")
SHAPES = sorted(
    {
        (s.dims["K"], s.dims["N"])
        for r in catalog().values()
        for s in r.shapes
        if {"K", "N"} <= set(s.dims)
    }
    | {(72, 40), (8, 1), (4104, 100), (16384, 53248), (28672, 8192)}
)


def program(fused: Fused, k: int, n: int) -> TileProgram:
    return tile_program("mine", fused(shape=Shape("a test", {"K": k, "N": n})))


def widened(made: TileProgram, copies: int) -> TileProgram:
    """Return a program with more products than it has."""
    products = [s for s in made.loop if s.do is Do.CONTRACT] * copies
    meetings = tuple(
        replace(m, out=f"{m.out}_{i}")
        for i in range(copies)
        for m in made.meetings
        if m.layout is Layout.ACCUM
    )
    return replace(made, loop=(*made.loop, *products), meetings=(*made.meetings, *meetings))


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40, 100, 2112, 2113, 4096, 6144, 10240, 53248])
@pytest.mark.parametrize("blocks", [1, 132, 264])
@pytest.mark.parametrize("tile", [8, 16])
def test_rows_per_block_are_the_fewest_that_cover_all(rows: int, blocks: int, tile: int) -> None:
    fewest = min(r for r in range(tile, rows + 32, tile) if r * blocks >= rows)
    assert rows_for(rows, blocks, tile) == fewest


def test_blocks_without_inner_products_take_rows_in_eights(fused: Fused) -> None:
    rows = {v.knobs.rows for v in variants(program(fused, 3584, 4608), ON) if v.bucket}
    assert rows == {40}


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_every_variant_fits_shared_memory(fused: Fused, k: int, n: int) -> None:
    made = program(fused, k, n)
    for variant in variants(made, ON):
        assert shared_bytes(made, variant.knobs) <= ON.shared_bytes


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_every_variant_fits_registers(fused: Fused, k: int, n: int) -> None:
    made = program(fused, k, n)
    for variant in variants(made, ON):
        assert registers(made, variant.knobs) <= REGISTERS_LEFT


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_every_variant_has_at_least_two_stages(fused: Fused, k: int, n: int) -> None:
    assert min(v.knobs.stages for v in variants(program(fused, k, n), ON)) >= 2


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_buckets_grow_and_the_last_takes_any_number(fused: Fused, k: int, n: int) -> None:
    made = variants(program(fused, k, n), ON)
    assert [v.bucket for v in made] == [*BUCKETS[:-1], 0]
    assert [v.knobs.tokens for v in made] == list(BUCKETS)


@pytest.mark.parametrize("k", [1, 4, 4095, 4100])
def test_rows_that_are_not_16_byte_aligned_have_no_variant(fused: Fused, k: int) -> None:
    with pytest.raises(PlanError) as caught:
        variants(program(fused, k, 40), ON)
    assert caught.value.sentence == f"mine: rows of {k} elements are not 16-byte aligned"
    assert caught.value.hint == "choose K as a multiple of 8"


def test_a_footprint_counts_fragments_and_accumulators(fused: Fused) -> None:
    made = Footprint.of(program(fused, 4096, 6144))
    assert (made.row_loads, made.token_loads, made.depth_loads) == (1, 1, 1)
    assert [m.layout for m in made.meetings] == [Layout.ACCUM, Layout.TOKEN_SUMS]
    assert made.products == 1


@pytest.mark.parametrize("products", [1, 3, 5])
def test_more_products_still_fit(fused: Fused, products: int) -> None:
    made = widened(program(fused, 4096, 6144), products)
    for variant in variants(made, ON):
        assert registers(made, variant.knobs) <= REGISTERS_LEFT
        assert shared_bytes(made, variant.knobs) <= ON.shared_bytes


def test_more_products_than_registers_hold_are_refused(fused: Fused) -> None:
    made = widened(program(fused, 4096, 6144), 160)
    with pytest.raises(PlanError, match="need more registers or shared memory"):
        variants(made, ON)


def test_more_loads_than_shared_memory_holds_are_refused(fused: Fused) -> None:
    small = replace(ON, shared_bytes=8 * 1024)
    with pytest.raises(PlanError, match="need more registers or shared memory"):
        variants(program(fused, 4096, 6144), small)


def test_tiles_of_a_variant_go_by_dim() -> None:
    knobs = SlicedK(tokens=8, rows=48, warps=8, chunks=2, stages=3)
    variant = Variant(8, knobs)
    assert variant.knobs.tiles(Roles("N", "M", "K")) == {
        "N": knobs.rows,
        "M": knobs.tokens,
        "K": knobs.warps * knobs.chunks * 32,
    }


def test_the_same_program_has_the_same_variants(fused: Fused) -> None:
    made = program(fused, 4096, 6144)
    assert variants(made, ON) == variants(made, ON)


def test_element_types_of_one_size_have_the_same_variants(fused: Fused) -> None:
    shape = Shape("a test", {"K": 4096, "N": 6144})
    half, brain = (
        tile_program("mine", fused(shape=shape, dtype=d)) for d in (DType.FP16, DType.BF16)
    )
    assert variants(half, ON) == variants(brain, ON)


def adapter(adapted: Fused, r: int) -> TileProgram:
    graph = adapted(shape=Shape("a test", {"K": 4096, "N": 4096, "R": r}))
    return tile_program("mine", graph)


@pytest.mark.parametrize("r", [8, 16, 24, 64, 128])
def test_variants_with_an_adapter_fit(adapted: Fused, r: int) -> None:
    made = adapter(adapted, r)
    for variant in variants(made, ON):
        assert registers(made, variant.knobs) <= REGISTERS_LEFT
        assert shared_bytes(made, variant.knobs) <= ON.shared_bytes


def test_tokens_that_a_block_cannot_hold_get_no_bucket(adapted: Fused) -> None:
    made = variants(adapter(adapted, 256), ON)
    assert [(v.bucket, v.knobs.tokens) for v in made] == [(0, 8)]


def test_inner_lines_take_registers_in_whole_row_tiles(adapted: Fused) -> None:
    knobs = SlicedK(tokens=8, rows=32, warps=8, chunks=2, stages=2)
    programs = {r: adapter(adapted, r) for r in (8, 16, 24, 48)}
    needed = {r: registers(made, knobs) for r, made in programs.items()}
    one_tile = 4 + 2 * 2 * 4  # an accumulator's, and two octets of two chunks
    assert needed[8] == needed[16]
    assert needed[24] == needed[16] + one_tile
    assert needed[48] == needed[16] + 2 * one_tile


def test_what_is_fetched_shares_no_bytes_with_the_ring(adapted: Fused) -> None:
    made = Footprint.of(adapter(adapted, 16))
    knobs = SlicedK(tokens=8, rows=32, warps=8, chunks=2, stages=2)
    place = made.arrangement(knobs)
    (fetched, *late) = made.kept
    assert [k.since for k in made.kept] == [-1, 1, 2]
    assert place.offsets["steps"] == fetched.bytes(knobs) == 32 * 24 * 2
    assert min(place.offsets[k.name] for k in late) > fetched.bytes(knobs)


def test_kept_lines_are_an_odd_number_of_octets_apart() -> None:
    knobs = SlicedK(tokens=8, rows=32, warps=8, chunks=2, stages=2)
    sizes = {r: Kept("b", Layout.FACTORS, r, -1).bytes(knobs) for r in (8, 16, 24, 64)}
    assert sizes == {8: 32 * 8 * 2, 16: 32 * 24 * 2, 24: 32 * 24 * 2, 64: 32 * 72 * 2}


def test_an_adapter_of_a_rank_that_is_not_16_byte_aligned_has_no_variant(adapted: Fused) -> None:
    with pytest.raises(PlanError) as caught:
        variants(adapter(adapted, 12), ON)
    assert caught.value.sentence == "mine: R = 12 is no multiple of 8"
