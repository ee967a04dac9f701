"""The plan of held tokens: which programs it carries, and what fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_kernels.generator.ir import Dim, Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.choose import programs_of, variants
from mirage_kernels.generator.schedules.register_operand.knobs import (
    MOST_ROWS,
    RegisterBlock,
    can_run,
)
from mirage_kernels.generator.schedules.register_operand.rule import held_stages, in_pairs
from mirage_kernels.generator.target import target

Fused = Callable[..., Graph]
ON = target("sm_90a")
KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "sm_90a"
GATED = ["gated_mlp/K4096_N4096_fp16", "gated_mlp/K4096_N14336_bf16"]
LORA = ["lora_linear/K4096_N4096_R16_fp16", "lora_linear/K4096_N4096_R64_bf16"]


def program(name: str) -> TileProgram:
    record = load_record(KERNELS / f"{name}.json")
    return programs_of(record.recipe, record.graph, record.arch)[0]


@pytest.mark.parametrize("name", GATED)
def test_more_than_16_tokens_are_held_where_weights_are_taken_as_they_lie(name: str) -> None:
    found = {v.knobs.tokens: v.schedule for v in variants(program(name), ON)}
    assert found == {8: "sliced_k", 16: "sliced_k", 32: "register_operand", 64: "register_operand"}


@pytest.mark.parametrize("name", LORA)
def test_where_other_blocks_compute_totals_pairs_hold_tokens(name: str) -> None:
    found = {v.knobs.tokens: (v.schedule, v.knobs.blocks) for v in variants(program(name), ON)}
    assert found == {
        **dict.fromkeys((8, 16), ("sliced_k", 1)),
        **dict.fromkeys((32, 64), ("register_operand", 2)),
    }


@pytest.mark.parametrize(("name", "rows"), [(LORA[0], 64), (LORA[1], 64), (GATED[0], 0)])
def test_two_blocks_split_the_depth_where_their_rows_fit(name: str, rows: int) -> None:
    pair = in_pairs(program(name), 64, ON)
    assert (pair.rows if pair else 0) == rows
    knobs = variants(program(name), ON)[-1].knobs
    assert knobs.blocks == (2 if rows else 1)


def test_an_odd_number_of_makers_leaves_no_pairs() -> None:
    made = program(LORA[0])
    assert in_pairs(made, 64, ON) is not None
    assert in_pairs(replace(made, producer_blocks=1), 64, ON) is None


def test_a_pair_has_two_turns_in_its_ring() -> None:
    block = RegisterBlock.of(program(GATED[0])).sized(64, 64, 2)
    assert held_stages(block, ON) == 2 * block.groups
    assert held_stages(block, replace(ON, shared_bytes=ON.shared_bytes // 2)) == 0


def test_sums_from_the_other_block_lie_beside_the_ring() -> None:
    alone, pair = (RegisterBlock.of(program(GATED[0])).sized(64, 64, n) for n in (1, 2))
    sums = 2 * 32 * 64 * 4 * 2  # products, rows of a block, tokens, fp32, warpgroups that send
    assert pair.shared_bytes(4) - alone.shared_bytes(4) == sums


def test_weights_that_are_computed_with_are_not_for_this_plan(fused: Fused) -> None:
    assert not can_run(tile_program("mine", fused("w")))
    assert can_run(tile_program("mine", fused("x")))


def scaled(fused: Fused, k: int, n: int) -> TileProgram:
    return tile_program("mine", fused("x", shape=Shape("a test", {"K": k, "N": n})))


def test_scaled_tokens_are_held_with_their_vectors_and_sums(fused: Fused) -> None:
    block = RegisterBlock.of(scaled(fused, 4096, 4096))
    assert (block.vectors, block.token_sums, block.mapped) == (1, 1, 1)
    plain = replace(block, vectors=0, token_sums=0).sized(64, 64, 2)
    beside = 2048 * 2 + 4 * 64 * 4  # half of the vector; two warpgroups of two blocks
    assert block.sized(64, 64, 2).shared_bytes(4) - plain.shared_bytes(4) == beside


@pytest.mark.parametrize(
    ("k", "n", "rows", "stages"), [(4096, 6144, 96, 4), (8192, 10240, 160, 3), (3584, 4608, 80, 3)]
)
def test_pairs_hold_scaled_tokens_where_there_are_many(
    fused: Fused, k: int, n: int, rows: int, stages: int
) -> None:
    knobs = {v.knobs.tokens: v.knobs for v in variants(scaled(fused, k, n), ON)}
    made = knobs[64]
    assert (made.schedule, made.rows, made.stages) == ("register_operand", rows, stages)
    assert made.blocks == 1 or knobs[32].schedule != "register_operand"


def test_more_rows_than_one_product_takes_are_equal_parts() -> None:
    block = RegisterBlock.of(program(LORA[0]))
    sides = {rows: block.sized(rows, 64, 2).side for rows in (64, 112, 128, 160, 192, 208)}
    assert sides == {64: 64, 112: 112, 128: 64, 160: 80, 192: 96, 208: 16}
    assert held_stages(block.sized(208, 64, 2), ON) == 0


def test_the_last_pair_has_rows_for_both_blocks() -> None:
    made = program(LORA[0])
    assert in_pairs(made, 64, ON) is not None
    for rows, pair in ((4096, 64), (4096 - 16, 64), (4096 - 40, 0)):
        assert (found.rows if (found := in_pairs(_with_rows(made, rows), 64, ON)) else 0) == pair


def _with_rows(made: TileProgram, rows: int) -> TileProgram:
    def cut(dim: Dim) -> Dim:
        return replace(dim, size=rows) if dim.name == made.roles.rows else dim

    inputs = tuple(
        replace(o, type=replace(o.type, dims=tuple(map(cut, o.type.dims)))) for o in made.inputs
    )
    return replace(made, inputs=inputs)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a"])
def test_what_has_no_warpgroup_products_does_not_hold(arch: str) -> None:
    assert {
        (v.schedule == "register_operand") for v in variants(program(GATED[0]), target(arch))
    } == {0}


def test_a_short_depth_is_not_held() -> None:
    short = program("lora_linear/K256_N4096_R16_fp16")
    assert {(v.schedule == "register_operand") for v in variants(short, ON)} == {0}


@pytest.mark.parametrize("name", [*GATED, *LORA])
@pytest.mark.parametrize("tokens", [16, 32, 64])
def test_what_meets_fits_where_the_ring_was(name: str, tokens: int) -> None:
    for rows in range(16, 2 * MOST_ROWS, 16):
        block = RegisterBlock.of(program(name)).sized(rows, tokens)
        stages = held_stages(block, ON)
        assert stages % block.groups == 0
        assert stages == 0 or block.meeting_bytes <= block.ring_bytes(stages)
        assert stages == 0 or block.shared_bytes(stages) <= ON.shared_bytes
        assert stages == 0 or rows <= MOST_ROWS


@pytest.mark.parametrize("name", GATED)
def test_the_blocks_fill_one_wave(name: str) -> None:
    record = load_record(KERNELS / f"{name}.json")
    knobs = variants(program(name), ON)[-1].knobs
    assert -(-record.shape["N"] // knobs.rows) <= ON.multiprocessors


def test_long_steps_have_one_warpgroup_short_ones_two() -> None:
    block = RegisterBlock.of(program(GATED[0]))
    assert [block.sized(rows, 64).groups for rows in (32, 64, 80, 112)] == [2, 2, 1, 1]
    assert replace(block, depth=4096 + 128).sized(32, 64).groups == 1


def test_boxes_have_barriers_of_their_own_where_steps_are_slow() -> None:
    block = RegisterBlock.of(program(GATED[0]))
    turns, alone = block.sized(32, 64), block.sized(112, 32)
    assert (turns.groups, turns.best_barriers) == (2, 2)
    assert (alone.groups, alone.best_barriers) == (1, 2)
    assert block.sized(32, 32).best_barriers == 1
    assert replace(turns, mapped=1).best_barriers == 1
    more = replace(turns, barriers=2).shared_bytes(4) - turns.shared_bytes(4)
    assert more == 4 * 8
