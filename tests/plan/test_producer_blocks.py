"""Producer blocks and batched LoRA: when, which, and the two programs that they make of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from mirage_kernels.generator.build.compile import ROOT
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, Roles, TileProgram
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.batched_lora import (
    first_launch,
    slices_ahead,
    stacked_program,
    stacked_variants,
)
from mirage_kernels.generator.schedules.choose import (
    member,
    programs_of,
    registers,
    shared_bytes,
    variants,
)
from mirage_kernels.generator.schedules.cluster_split_k import ClusterSplitK
from mirage_kernels.generator.schedules.loop import LoopKnobs, Producers, producers_of
from mirage_kernels.generator.schedules.producer_blocks import (
    TAG_BYTES,
    producer_tiles,
    spare_blocks,
    with_producer_blocks,
)
from mirage_kernels.generator.schedules.register_operand import RegisterOperand
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.schedules.sliced_k import Footprint, SlicedK
from mirage_kernels.generator.target import TARGETS, target


def program(
    adapted: Fused, sizes: tuple[int, int, int] = (4096, 4096, 64), arch: str = "sm_90a"
) -> TileProgram:
    shape = Shape("a test", dict(zip("KNR", sizes, strict=True)))
    return with_producer_blocks(tile_program("mine", adapted(shape=shape), arch), target(arch))


def parts(whole: TileProgram) -> tuple[TileProgram, TileProgram]:
    """Return what producers run, and what consumers do."""
    assert whole.producers is not None
    assert whole.consumers is not None
    return whole.producers, whole.consumers


@pytest.mark.parametrize(
    ("sizes", "spare"),
    [
        ((4096, 4096, 16), 4),
        ((8192, 8192, 16), 4),
        ((4096, 5120, 16), 25),
        ((4096, 4224, 16), 0),  # rows take all multiprocessors
        ((4096, 4096, 128), 0),  # more row tiles than multiprocessors are left
        ((256, 4096, 16), 0),  # a loop too short to wait in
        ((4096, 1024, 16), 0),  # as few rows as a producer has
    ],
)
def test_some_blocks_compute_for_all_where_multiprocessors_are_left(
    adapted: Fused, sizes: tuple[int, int, int], spare: int
) -> None:
    made = program(adapted, sizes)
    assert spare_blocks(made, ON) == spare
    assert (made.consumers is not None) is (spare > 0)


@pytest.mark.parametrize("arch", sorted(set(TARGETS) - {"sm_90a"}))
def test_elsewhere_there_are_none(adapted: Fused, arch: str) -> None:
    made = program(adapted, arch=arch)
    assert made.consumers is None
    assert made.streamed is made


def test_without_inner_rows_there_is_nothing_to_compute(fused: Fused) -> None:
    assert spare_blocks(tile_program("mine", fused("w")), ON) == 0


@pytest.mark.parametrize(
    ("name", "several"),
    [("rms_norm_linear/K4096_N6144", False), ("lora_linear/K4096_N4096_R16", True)],
)
def test_a_kernel_that_may_have_them_need_not(name: str, several: bool) -> None:
    record = load_record(ROOT / "kernels" / "sm_90a" / f"{name}_fp16.json")
    programs = programs_of(record.recipe, record.graph, "sm_90a")
    assert [p.consumers is not None for p in programs] == ([True, False] if several else [False])
    assert member(programs, producers=True) is programs[0]
    assert member(programs, producers=False) is programs[-1]


def test_producers_have_a_plain_program_of_the_inner_rows(adapted: Fused) -> None:
    made, _ = parts(program(adapted))
    assert (made.roles.rows, made.roles.inner, made.produces) == ("R", (), True)
    assert [(o.name, o.index) for o in made.inputs] == [("x", 0), ("lora_a", 2)]
    assert {s.layout for s in made.loop} == {Layout.TOKENS, Layout.ROWS, Layout.ACCUM}
    assert [s.do for s in made.epilogue] == [Do.TOTAL, Do.STORE]
    assert (made.fetches, made.stages, made.products) == ((), (), ())


def test_consumers_have_no_inner_rows_in_their_loop(adapted: Fused) -> None:
    whole = program(adapted)
    producers, made = parts(whole)
    assert [o.name for o in made.inputs] == ["x", "weight", "lora_b"]
    assert all(s.layout is not Layout.INNER for s in made.loads)
    assert [(m.layout, m.barrier) for m in made.reductions] == [(Layout.ACCUM, True)]
    assert made.received == whole.kept
    assert made.products[0].args[1] == whole.kept[0].out
    assert made.epilogue == whole.epilogue
    assert made.streamed is made
    both = (producers, made)
    assert {s.out for p in both for s in p.loop} == {s.out for s in whole.loop}
    assert {m.out for p in both for m in p.reductions} == {m.out for m in whole.reductions}


@pytest.mark.parametrize(
    ("inner", "tokens", "tile"),
    [
        *((16, 8, (16, 8)), (16, 32, (16, 8)), (16, 64, (16, 16)), (24, 8, (16, 8))),
        *((64, 8, (16, 8)), (64, 16, (16, 16)), (64, 32, (16, 32)), (64, 64, (32, 32))),
    ],
)
def test_producers_share_rows_and_tokens(
    adapted: Fused, inner: int, tokens: int, tile: tuple[int, int]
) -> None:
    whole = program(adapted, (4096, 4096, inner))
    assert producer_tiles(whole, tokens, ON)[0] == tile
    others = [  # no other cover by as few blocks reads fewer lines
        r + t
        for r, t in product(range(16, 80, 16), (8, 16, 32, 64))
        if tokens % t == 0 and -(-inner // r) * (tokens // t) <= spare_blocks(whole, ON)
    ]
    assert sum(tile) == min(others)


@pytest.mark.parametrize(
    ("inner", "tokens", "spare", "tile"),
    [
        (64, 64, 4, (64, 32)),  # as many lines as 32 x 64
        (64, 32, 4, (32, 32)),
        (16, 64, 4, (16, 32)),
        (16, 64, 3, (16, 64)),  # one pair
        (24, 64, 4, None),  # no whole row tiles
        (8, 64, 4, None),
    ],
)
def test_producers_in_pairs_share_the_fewest_lines(
    adapted: Fused, inner: int, tokens: int, spare: int, tile: tuple[int, int] | None
) -> None:
    whole, on = program(adapted, (4096, 4096, inner)), replace(ON, multiprocessors=128 + spare)
    assert next(iter(producer_tiles(whole, tokens, on, paired=True)), None) == tile


@pytest.mark.parametrize("r", [8, 16, 24, 64])
def test_producers_and_consumers_fit_a_block(adapted: Fused, r: int) -> None:
    whole = program(adapted, (4096, 4096, r))
    made, _ = parts(whole)
    for knobs in (v.knobs for v in variants(whole, ON)):
        assert isinstance(knobs, LoopKnobs)
        assert knobs.producers
        assert shared_bytes(whole, knobs) <= ON.shared_bytes
        assert shared_bytes(made, knobs.producer_knobs) + TAG_BYTES <= ON.shared_bytes
        if isinstance(knobs, SlicedK):
            assert max(registers(whole, knobs), registers(made, knobs.producer_knobs)) <= 210


@pytest.mark.parametrize(("r", "paired"), [(16, True), (48, True), (64, True), (24, False)])
def test_consumers_in_pairs_have_producers_in_pairs(adapted: Fused, r: int, paired: bool) -> None:
    whole = program(adapted, (4096, 4096, r))
    made = [v.knobs for v in variants(whole, ON)]
    pairs = [k for k in made if isinstance(k, RegisterOperand)]
    assert bool(pairs) is paired
    assert pairs == [k for k in made if k.tokens > 16 and paired]
    for knobs in pairs:
        assert knobs.label == "register_operand in pairs, producer blocks in pairs"
        own = knobs.producer_knobs
        assert (own.blocks, own.barriers) == (2, 1)
        tiles = r // own.rows * (knobs.tokens // own.tokens)
        assert 2 * tiles <= spare_blocks(whole, ON)


def test_what_is_received_and_its_product_lie_beside_the_ring(adapted: Fused) -> None:
    made = Footprint.of(program(adapted))
    kept = [a for a in made.areas if not a.partial]
    assert [a.since for a in kept] == [-1, -1, -1]
    knobs = SlicedK(tokens=8, rows=32, warps=8, chunks=2, stages=2)
    assert made.arrangement(knobs).offsets["steps"] == sum(a.bytes(knobs) for a in kept)


def test_knobs_tell_of_producers_only_where_there_are_some() -> None:
    knobs = SlicedK(tokens=8, rows=32, warps=8, chunks=2, stages=2)
    assert "producers" not in knobs.to_json()
    beside = replace(knobs, producers=Producers(rows=16, tokens=8, stages=9))
    assert beside.producer_knobs == SlicedK(tokens=8, rows=16, warps=8, chunks=2, stages=9)
    assert beside.to_json()["producers"] == {"rows": 16, "tokens": 8, "stages": 9}


Fused = Callable[..., Graph]
ON = target("sm_90a")
STACKED = ("lora_a", "lora_b")
ROLES = Roles("M", "K", "N")


def plain(adapted: Fused, k: int = 4096, n: int = 4096, r: int = 64) -> TileProgram:
    shape = Shape("a test", {"K": k, "N": n, "R": r})
    return programs_of("mine_full", adapted(shape=shape), "sm_90a")[0]


def stacked(adapted: Fused, k: int = 4096, n: int = 4096, r: int = 64) -> TileProgram:
    made = stacked_program(plain(adapted, k, n, r), STACKED, ON)
    assert made is not None
    return made


def test_it_knows_what_is_stacked_and_is_named_after_its_overload(adapted: Fused) -> None:
    made = stacked(adapted)
    assert (made.recipe, made.stacked) == ("mine_batched", STACKED)
    assert made.consumers is not None
    assert made.producers is not None
    assert (made.consumers.stacked, made.producers.stacked) == (("lora_b",), ("lora_a",))
    assert [s.args[0] for s in made.consumers.fetches] == ["lora_b"]


@pytest.mark.parametrize("sizes", [(4096, 4224, 16), (256, 4096, 16), (4096, 1024, 16)])
def test_no_multiprocessor_has_to_be_left(adapted: Fused, sizes: tuple[int, int, int]) -> None:
    assert plain(adapted, *sizes).consumers is None
    made = stacked(adapted, *sizes)
    assert stacked_variants(made, variants(plain(adapted, *sizes), ON), ON)


@pytest.mark.parametrize("arch", sorted(set(TARGETS) - {"sm_90a"}))
def test_elsewhere_there_is_no_such_program(adapted: Fused, arch: str) -> None:
    assert stacked_program(plain(adapted), STACKED, target(arch)) is None


@pytest.mark.parametrize("names", [(), ("lora_a",), ("weight", "lora_b"), (*STACKED, "weight")])
def test_the_slices_are_the_factors_of_what_is_computed_apart(
    adapted: Fused, names: tuple[str, ...]
) -> None:
    assert stacked_program(plain(adapted), names, ON) is None


def test_without_inner_rows_there_is_nothing_to_stack(fused: Fused) -> None:
    assert stacked_program(tile_program("mine", fused("w")), ("weight",), ON) is None


@pytest.mark.parametrize(("depth", "stages"), [(4096, 2), (16384, 2), (2048, 1), (256, 1)])
def test_a_producer_has_no_more_steps_on_their_way_than_there_are(
    adapted: Fused, depth: int, stages: int
) -> None:
    assert first_launch(stacked(adapted, k=depth)).stages == stages


def test_variants_have_the_records_tiles_and_no_producers(adapted: Fused) -> None:
    chosen = variants(plain(adapted), ON)
    made = stacked_variants(stacked(adapted), chosen, ON)
    assert [v.knobs.tiles(ROLES) for v in made] == [v.knobs.tiles(ROLES) for v in chosen]
    assert not any(producers_of(v.knobs) for v in made)
    assert all(slices_ahead(stacked(adapted), v.knobs, ON) >= 2 for v in made)


def test_plans_without_a_place_for_slices_are_left_away(adapted: Fused) -> None:
    few = variants(plain(adapted), ON)[0]
    split = Variant(0, ClusterSplitK(64, 64, 4))
    (only,) = stacked_variants(stacked(adapted), (few, split), ON)
    assert only == replace(few, bucket=0, knobs=only.knobs)
