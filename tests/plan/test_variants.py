"""Variants: knobs from the target, compared with brute force, within the target's limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, Roles, TileProgram
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import registers, shared_bytes, variants
from mirage_kernels.generator.schedules.loop import BUCKETS, REGISTERS_LEFT, kept_bytes, rows_for
from mirage_kernels.generator.schedules.sliced_k import Footprint, SlicedK
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
ON = target("sm_90a")
KNOBS = SlicedK(tokens=8, rows=32, warps=8, chunks=2, stages=2)


def program(fused: Fused, k: int = 4096, n: int = 6144) -> TileProgram:
    return tile_program("mine", fused(shape=Shape("a test", {"K": k, "N": n})))


def adapter(adapted: Fused, r: int) -> TileProgram:
    graph = adapted(shape=Shape("a test", {"K": 4096, "N": 4096, "R": r}))
    return tile_program("mine", graph)


def widened(made: TileProgram, copies: int) -> TileProgram:
    """Return a program with more products than it has."""
    products = [s for s in made.loop if s.do is Do.CONTRACT] * copies
    reductions = tuple(
        replace(m, out=f"{m.out}_{i}")
        for i in range(copies)
        for m in made.reductions
        if m.layout is Layout.ACCUM
    )
    return replace(made, loop=(*made.loop, *products), reductions=(*made.reductions, *reductions))


def require_fits(made: TileProgram) -> None:
    for variant in variants(made, ON):
        assert shared_bytes(made, variant.knobs) <= ON.shared_bytes
        assert registers(made, variant.knobs) <= REGISTERS_LEFT
        assert variant.knobs.stages >= 2


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100, 2112, 2113, 6144, 53248])
@pytest.mark.parametrize("blocks", [1, 132, 264])
@pytest.mark.parametrize("tile", [8, 16])
def test_rows_per_block_are_the_fewest_that_cover_all(rows: int, blocks: int, tile: int) -> None:
    fewest = min(r for r in range(tile, rows + 32, tile) if r * blocks >= rows)
    assert rows_for(rows, blocks, tile) == fewest


def test_blocks_without_inner_products_take_rows_in_eights(fused: Fused) -> None:
    rows = {v.knobs.rows for v in variants(program(fused, 3584, 4608), ON) if v.bucket}
    assert rows == {40}


@pytest.mark.parametrize(
    ("k", "n"),
    [(4096, 6144), (8192, 10240), (72, 40), (8, 1), (4104, 100), (16384, 53248), (28672, 8192)],
)
def test_variants_fit_buckets_grow_and_the_last_takes_any_number(
    fused: Fused, k: int, n: int
) -> None:
    program_ = program(fused, k, n)
    made = variants(program_, ON)
    assert [v.bucket for v in made] == [*BUCKETS[:-1], 0]
    assert [v.knobs.tokens for v in made] == list(BUCKETS)
    require_fits(program_)


@pytest.mark.parametrize("k", [1, 4, 4095, 4100])
def test_rows_that_are_not_16_byte_aligned_have_no_variant(fused: Fused, k: int) -> None:
    with pytest.raises(PlanError) as caught:
        variants(program(fused, k, 40), ON)
    assert caught.value.sentence == f"mine: rows of {k} elements are not 16-byte aligned"
    assert caught.value.hint == "choose K as a multiple of 8"


@pytest.mark.parametrize("products", [1, 3, 5])
def test_more_products_still_fit(fused: Fused, products: int) -> None:
    require_fits(widened(program(fused), products))


def test_more_than_registers_or_shared_memory_hold_is_refused(fused: Fused) -> None:
    small = replace(ON, shared_bytes=8 * 1024)
    for made, on in ((widened(program(fused), 160), ON), (program(fused), small)):
        with pytest.raises(PlanError, match="need more registers or shared memory"):
            variants(made, on)


def test_tiles_of_a_variant_go_by_dim() -> None:
    knobs = SlicedK(tokens=8, rows=48, warps=8, chunks=2, stages=3)
    assert knobs.tiles(Roles("M", "K", "N")) == {"N": 48, "M": 8, "K": 8 * 2 * 32}


def test_element_types_of_one_size_have_the_same_variants(fused: Fused) -> None:
    shape = Shape("a test", {"K": 4096, "N": 6144})
    half, brain = (
        tile_program("mine", fused(shape=shape, dtype=d)) for d in (DType.FP16, DType.BF16)
    )
    assert variants(half, ON) == variants(brain, ON)


@pytest.mark.parametrize("r", [8, 24, 128])
def test_variants_with_an_adapter_fit(adapted: Fused, r: int) -> None:
    require_fits(adapter(adapted, r))


def test_tokens_that_a_block_cannot_hold_get_no_bucket(adapted: Fused) -> None:
    made = variants(adapter(adapted, 256), ON)
    assert [(v.bucket, v.knobs.tokens) for v in made] == [(0, 8)]


def test_inner_lines_take_registers_in_whole_row_tiles(adapted: Fused) -> None:
    needed = {r: registers(adapter(adapted, r), KNOBS) for r in (8, 16, 24, 48)}
    one_tile = 4 + 2 * 2 * 4  # an accumulator's, and two vectors of two chunks
    assert needed[8] == needed[16]
    assert needed[24] == needed[16] + one_tile
    assert needed[48] == needed[16] + 2 * one_tile


def test_what_is_fetched_shares_no_bytes_with_the_ring(adapted: Fused) -> None:
    made = Footprint.of(adapter(adapted, 16))
    place = made.arrangement(KNOBS)
    (fetched, *late) = (a for a in made.areas if not a.partial)
    assert fetched.since == -1
    assert late[1].since == late[0].since + 1
    assert place.offsets["steps"] == fetched.bytes(KNOBS) == 32 * 24 * 2
    assert min(place.offsets[a.name] for a in late) > fetched.bytes(KNOBS)


def test_kept_lines_are_an_odd_number_of_vectors_apart() -> None:
    assert [kept_bytes(32, r) for r in (8, 16, 24, 64)] == [32 * n * 2 for n in (8, 24, 24, 72)]


def test_an_adapter_of_a_rank_that_is_not_16_byte_aligned_has_no_variant(adapted: Fused) -> None:
    with pytest.raises(PlanError) as caught:
        variants(adapter(adapted, 12), ON)
    assert caught.value.sentence == "mine: R = 12 is no multiple of 8"
