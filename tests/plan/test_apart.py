"""Totals computed apart: when, by which blocks, and the two programs that this makes of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import variants
from mirage_kernels.generator.schedules.loop import Producers
from mirage_kernels.generator.schedules.producer_blocks import (
    consumer_program,
    paired_tile,
    producer_program,
    producer_tile,
    spare_blocks,
    with_producer_blocks,
)
from mirage_kernels.generator.schedules.register_operand.knobs import RegisterOperand
from mirage_kernels.generator.schedules.register_operand.rule import paired_producers
from mirage_kernels.generator.schedules.sizes import (
    producers_bytes,
    producers_of,
    registers,
    shared_bytes,
)
from mirage_kernels.generator.schedules.sliced_k.block import Footprint
from mirage_kernels.generator.schedules.sliced_k.knobs import SlicedK
from mirage_kernels.generator.target import TARGETS, target

Fused = Callable[..., Graph]
ON = target("sm_90a")


def program(
    adapted: Fused, sizes: tuple[int, int, int] = (4096, 4096, 64), arch: str = "sm_90a"
) -> TileProgram:
    shape = Shape("a test", dict(zip("KNR", sizes, strict=True)))
    plain = tile_program("mine", adapted(shape=shape), arch)
    return with_producer_blocks(plain, target(arch))


@pytest.mark.parametrize(
    ("sizes", "spare"),
    [
        ((4096, 4096, 16), 4),
        ((4096, 4096, 64), 4),
        ((8192, 8192, 16), 4),
        ((4096, 5120, 16), 25),
        ((4096, 4224, 16), 0),  # rows take all multiprocessors
        ((4096, 4096, 128), 0),  # more row tiles than multiprocessors are left
        ((256, 4096, 16), 0),  # a loop too short to wait in
        ((4096, 1024, 16), 0),  # as few rows as a maker has
    ],
)
def test_some_blocks_compute_for_all_where_multiprocessors_are_left(
    adapted: Fused, sizes: tuple[int, int, int], spare: int
) -> None:
    assert program(adapted, sizes).producer_blocks == spare


@pytest.mark.parametrize("arch", sorted(set(TARGETS) - {"sm_90a"}))
def test_elsewhere_nothing_is_computed_apart(adapted: Fused, arch: str) -> None:
    assert program(adapted, arch=arch).producer_blocks == 0


def test_without_inner_rows_there_is_nothing_to_compute(fused: Fused) -> None:
    made = tile_program("mine", fused("w"))
    assert made.producer_blocks == spare_blocks(made, ON) == 0


def test_makers_have_a_plain_program_of_the_inner_rows(adapted: Fused) -> None:
    made = producer_program(program(adapted))
    assert (made.roles.rows, made.roles.inner, made.produces) == ("R", (), True)
    assert [o.name for o in made.inputs] == ["x", "lora_a"]
    assert [o.index for o in made.inputs] == [0, 2]
    assert {s.layout for s in made.loop} == {Layout.TOKENS, Layout.ROWS, Layout.ACCUM}
    assert [s.do for s in made.epilogue] == [Do.TOTAL, Do.STORE]
    assert (made.fetches, made.stages, made.products) == ((), (), ())


def test_users_have_no_inner_rows_in_their_loop(adapted: Fused) -> None:
    whole = program(adapted)
    made = consumer_program(whole)
    assert [o.name for o in made.inputs] == ["x", "weight", "lora_b"]
    assert all(s.layout is not Layout.INNER for s in made.loads)
    assert [m.layout for m in made.meetings] == [Layout.ACCUM]
    assert made.meetings[0].barrier
    assert made.received == whole.kept
    assert made.products[0].args[1] == whole.kept[0].out
    assert made.epilogue == whole.epilogue
    assert consumer_program(made) is made


def test_both_together_compute_what_the_whole_does(adapted: Fused) -> None:
    whole = program(adapted)
    parts = (producer_program(whole), consumer_program(whole))
    assert {s.out for p in parts for s in p.loop} == {s.out for s in whole.loop}
    assert {m.out for p in parts for m in p.meetings} == {m.out for m in whole.meetings}


@pytest.mark.parametrize(
    ("inner", "tokens", "tile"),
    [
        (16, 8, (16, 8)),
        (16, 32, (16, 8)),
        (16, 64, (16, 16)),
        (64, 8, (16, 8)),
        (64, 16, (16, 16)),
        (64, 32, (16, 32)),
        (64, 64, (32, 32)),
        (24, 8, (16, 8)),
    ],
)
def test_makers_share_rows_and_tokens(inner: int, tokens: int, tile: tuple[int, int]) -> None:
    assert producer_tile(inner, tokens, 4) == tile


@pytest.mark.parametrize(("inner", "tokens"), list(product((16, 32, 48, 64), (8, 16, 32, 64))))
def test_no_cover_by_as_few_blocks_reads_fewer_lines(inner: int, tokens: int) -> None:
    rows, few = producer_tile(inner, tokens, 4)
    assert -(-inner // rows) * (tokens // few) <= 4
    others = [
        r + t
        for r, t in product(range(16, 80, 16), (8, 16, 32, 64))
        if tokens % t == 0 and -(-inner // r) * (tokens // t) <= 4
    ]
    assert rows + few == min(others)


@pytest.mark.parametrize("r", [8, 16, 24, 64])
def test_makers_and_users_fit_a_block(adapted: Fused, r: int) -> None:
    whole = program(adapted, (4096, 4096, r))
    made = producer_program(whole)
    for knobs in (v.knobs for v in variants(whole, ON)):
        assert producers_of(knobs)
        assert shared_bytes(whole, knobs) <= ON.shared_bytes
        assert producers_bytes(whole, knobs) <= ON.shared_bytes
        if isinstance(knobs, SlicedK) and knobs.producers:
            own = knobs.of_producers(knobs.producers)
            assert max(registers(whole, knobs), registers(made, own)) <= 210


@pytest.mark.parametrize(
    ("inner", "tokens", "spare", "tile"),
    [
        (64, 64, 4, (64, 32)),  # as many lines as 32 x 64
        (64, 32, 4, (32, 32)),
        (16, 64, 4, (16, 32)),
        (16, 64, 3, (16, 64)),  # one pair
        (128, 64, 4, (64, 64)),
        (64, 64, 1, None),
        (24, 64, 4, None),  # no whole row tiles
        (8, 64, 4, None),
    ],
)
def test_makers_in_pairs_share_the_fewest_lines(
    inner: int, tokens: int, spare: int, tile: tuple[int, int] | None
) -> None:
    assert paired_tile(inner, tokens, spare) == tile


@pytest.mark.parametrize("r", [16, 32, 48, 64])
def test_users_in_pairs_have_makers_in_pairs(adapted: Fused, r: int) -> None:
    whole = program(adapted, (4096, 4096, r))
    for knobs in (v.knobs for v in variants(whole, ON)):
        pairs = isinstance(knobs, RegisterOperand)
        assert pairs is (knobs.label == "register_operand in pairs, producer blocks in pairs")
        assert pairs is (knobs.tokens > 16)
        if not isinstance(knobs, RegisterOperand):
            continue
        found = paired_producers(whole, knobs.tokens, ON)
        assert found is not None
        block, stages = found
        assert knobs.producers == Producers(block.rows // 2, block.tokens, stages, block.groups)
        assert block.shared_bytes(stages) + 16 <= ON.shared_bytes
        tiles = r // block.rows * (knobs.tokens // block.tokens)
        assert 2 * tiles <= whole.producer_blocks


def test_a_rank_of_no_whole_row_tiles_leaves_slices_to_makers(adapted: Fused) -> None:
    found = {v.knobs.label for v in variants(program(adapted, (4096, 4096, 24)), ON)}
    assert "sliced_k, producer blocks" in found
    assert not any("in pairs" in name for name in found)


def test_what_is_received_and_its_product_lie_beside_the_ring(adapted: Fused) -> None:
    made = Footprint.of(program(adapted))
    assert made.receives
    assert [k.since for k in made.kept] == [-1, -1, -1]
    knobs = SlicedK(tokens=8, rows=32, warps=8, chunks=2, stages=2)
    beside = sum(k.bytes(knobs) for k in made.kept)
    assert made.arrangement(knobs).offsets["steps"] == beside


def test_knobs_tell_of_producers_only_where_there_are_some() -> None:
    knobs = SlicedK(tokens=8, rows=32, warps=8, chunks=2, stages=2)
    assert "producers" not in knobs.to_json()
    made = Producers(rows=16, tokens=8, stages=9)
    assert knobs.of_producers(made) == SlicedK(tokens=8, rows=16, warps=8, chunks=2, stages=9)
    made_json = replace(knobs, producers=made).to_json()
    assert made_json["producers"] == {
        "rows": 16,
        "tokens": 8,
        "stages": 9,
    }
