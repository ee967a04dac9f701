"""The split plan: which programs it carries, who runs which statement, what fits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, TileProgram
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import variants
from mirage_kernels.generator.schedules.cluster_split_k.block import SplitBlock, split
from mirage_kernels.generator.schedules.cluster_split_k.rule import split_stages
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
ON = target("sm_90a")


def program(fused: Fused, *, k: int = 4096, n: int = 6144, scales: str = "w") -> TileProgram:
    return tile_program("mine", fused(scales, shape=Shape("a test", {"K": k, "N": n})))


@pytest.mark.parametrize(("k", "n"), [(4096, 6144), (4096, 4096), (8192, 10240), (3584, 4608)])
def test_only_many_tokens_are_split(fused: Fused, k: int, n: int) -> None:
    found = {v.knobs.tokens: v.knobs.blocks for v in variants(program(fused, k=k, n=n), ON)}
    takes_turns = n == 4096
    assert found == {8: 1, 16: 1, 32: 2 if takes_turns else 1, 64: 2}


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a"])
def test_what_has_no_warpgroup_products_is_not_split(fused: Fused, arch: str) -> None:
    assert {v.knobs.blocks for v in variants(program(fused), target(arch))} == {1}


@pytest.mark.parametrize("k", [64, 72, 4032, 4160])
def test_a_depth_of_no_whole_boxes_for_both_blocks_is_not_split(fused: Fused, k: int) -> None:
    assert {v.knobs.blocks for v in variants(program(fused, k=k), ON)} == {1}


def test_the_blocks_of_a_split_fill_one_wave(fused: Fused) -> None:
    for n in (4096, 4608, 6144, 10240):
        knobs = variants(program(fused, n=n), ON)[-1].knobs
        assert -(-n // knobs.rows) * knobs.blocks <= ON.multiprocessors


def test_scaled_weights_are_computed_by_those_who_multiply(fused: Fused) -> None:
    made = split(program(fused))
    assert made is not None
    assert [s.do for s in made.prepared] == [Do.MAP, Do.SUM]
    assert [s.do for s in made.multiplied] == [Do.MAP, Do.CONTRACT]
    assert made.rewritten == ""


def test_scaled_tokens_are_computed_once_and_replace_the_tokens(fused: Fused) -> None:
    made = split(program(fused, scales="x"))
    assert made is not None
    assert [s.do for s in made.multiplied] == [Do.CONTRACT]
    assert made.rewritten in {s.out for s in made.prepared}
    assert made.multiplied[0].args[1] == made.rewritten


def test_every_statement_of_the_loop_has_a_role(fused: Fused) -> None:
    for scales in ("w", "x"):
        whole = program(fused, scales=scales)
        made = split(whole)
        assert made is not None
        computed = {s.out for s in whole.loop if s.do is not Do.LOAD}
        assert {s.out for s in (*made.prepared, *made.multiplied)} == computed


def test_three_warpgroups_have_a_tile_each_of_more_than_128_rows(fused: Fused) -> None:
    block = SplitBlock.of(program(fused))
    sized = {rows: block.sized(rows, 64) for rows in (64, 96, 128, 144, 160, 192, 208)}
    groups = {rows: (b.groups, b.turns, b.tiles) for rows, b in sized.items()}
    three = dict.fromkeys((144, 160, 192), (3, 1, 1))
    assert groups == {64: (2, 2, 1), 96: (2, 1, 1), 128: (2, 1, 1), **three, 208: (2, 1, 2)}
    assert sized[160].own_rows == 56  # and the last one 48
    knobs = variants(program(fused, k=8192, n=10240), ON)[-1].knobs
    assert (knobs.rows, knobs.warps) == (160, 12)


def test_two_steps_are_in_registers_where_they_and_the_ring_have_room(fused: Fused) -> None:
    block = SplitBlock.of(program(fused))
    assert block.sized(96, 64).sets(6) == 2
    assert block.sized(96, 64).sets(4) == 1
    assert block.sized(64, 64).sets(8) == 1  # in turns
    assert block.sized(208, 64).sets(6) == 1  # two tiles


def test_what_meets_fits_beside_the_ring(fused: Fused) -> None:
    whole = program(fused)
    for rows in range(16, 272, 16):
        block = SplitBlock.of(whole).sized(rows, 64)
        stages = split_stages(whole, block, ON)
        assert stages % block.turns == 0
        assert block.shared_bytes(stages) <= ON.shared_bytes
        more = block.shared_bytes(8) - block.ring_bytes(8)
        assert more >= block.meeting_bytes


def test_more_rows_than_the_copy_engine_takes_are_not_split(fused: Fused) -> None:
    whole = program(fused)
    assert split_stages(whole, SplitBlock.of(whole).sized(272, 64), ON) == 0
