"""Cluster split-K: which programs it carries, who runs which statement, what fits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, TileProgram
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.schedules.choose import variants
from mirage_kernels.generator.schedules.cluster_split_k import (
    ClusterSplitK,
    SplitBlock,
    candidates,
    split,
)
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
ON = target("sm_90a")


def program(fused: Fused, *, k: int = 4096, n: int = 6144, scales: str = "w") -> TileProgram:
    return tile_program("mine", fused(scales, shape=Shape("a test", {"K": k, "N": n})))


@pytest.mark.parametrize(("k", "n"), [(4096, 6144), (4096, 4096), (8192, 10240), (3584, 4608)])
def test_only_many_tokens_are_split_and_fill_one_wave(fused: Fused, k: int, n: int) -> None:
    made = [v.knobs for v in variants(program(fused, k=k, n=n), ON)]
    takes_turns = n == 4096
    assert {knobs.tokens: knobs.blocks for knobs in made} == {
        **{8: 1, 16: 1, 32: 2 if takes_turns else 1, 64: 2}
    }
    assert -(-n // made[-1].rows) * made[-1].blocks <= ON.multiprocessors


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a"])
def test_what_has_no_warpgroup_products_is_not_split(fused: Fused, arch: str) -> None:
    assert {v.knobs.blocks for v in variants(program(fused), target(arch))} == {1}


@pytest.mark.parametrize("k", [64, 72, 4032, 4160])
def test_a_depth_of_no_whole_boxes_for_both_blocks_is_not_split(fused: Fused, k: int) -> None:
    assert {v.knobs.blocks for v in variants(program(fused, k=k), ON)} == {1}


def test_every_statement_has_a_role_and_scaled_weights_are_computed_where_they_are_multiplied(
    fused: Fused,
) -> None:
    whole = program(fused)
    made = split(whole)
    assert made is not None
    assert [s.do for s in made.prepared] == [Do.MAP, Do.SUM]
    assert [s.do for s in made.multiplied] == [Do.MAP, Do.CONTRACT]
    assert made.rewritten == ""
    assert {*made.prepared, *made.multiplied} == {*whole.loop} - {*whole.loads}


def test_scaled_tokens_are_computed_once_and_replace_the_tokens(fused: Fused) -> None:
    whole = program(fused, scales="x")
    made = split(whole)
    assert made is not None
    assert [s.do for s in made.multiplied] == [Do.CONTRACT]
    assert made.rewritten in {s.out for s in made.prepared}
    assert made.multiplied[0].args[1] == made.rewritten
    assert {*made.prepared, *made.multiplied} == {*whole.loop} - {*whole.loads}


def test_three_warpgroups_have_a_tile_each_of_more_than_128_rows(fused: Fused) -> None:
    whole = program(fused)
    block = SplitBlock(whole)
    knobs = {k.rows: k for k in candidates(whole, 64, ON)}
    sizes = {rows: (k.groups, block.turns(rows), block.tiles(k)) for rows, k in knobs.items()}
    assert [sizes[rows] for rows in (64, 96, 128)] == [(2, 2, 1), (2, 1, 1), (2, 1, 1)]
    assert {sizes[rows] for rows in (144, 160, 192)} == {(3, 1, 1)}
    assert sizes[208] == (2, 1, 2)
    assert block.own_rows(knobs[160]) == 56  # and the last one 48
    chosen = variants(program(fused, k=8192, n=10240), ON)[-1].knobs
    assert (chosen.rows, chosen.warps) == (160, 12)


def test_two_steps_are_in_registers_where_they_and_the_ring_have_room(fused: Fused) -> None:
    block = SplitBlock(program(fused))
    sizes = [(96, 6), (96, 4), (64, 8), (208, 6)]  # few stages, turns, two tiles
    assert [block.sets(ClusterSplitK(64, *size)) for size in sizes] == [2, 1, 1, 1]


def test_the_ring_and_what_meets_beside_it_fit(fused: Fused) -> None:
    whole = program(fused)
    block = SplitBlock(whole)
    made = [*candidates(whole, 64, ON)]
    assert max(knobs.rows for knobs in made) <= 256  # lines of a box
    for knobs in made:
        assert knobs.stages % block.turns(knobs.rows) == 0
        assert block.shared_bytes(knobs) <= ON.shared_bytes
        assert block.shared_bytes(knobs) >= block.ring_bytes(knobs) + block.meeting_bytes(knobs)
