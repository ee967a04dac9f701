"""Cluster split-K and register-operand wgmma: which programs they carry, and what fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_kernels.generator.ir import Dim, Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import Do, Layout, TileProgram
from mirage_kernels.generator.recipe import Shape
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.choose import Wanted, by_size, programs_of, variants
from mirage_kernels.generator.schedules.choose import candidates as candidates_of_bucket
from mirage_kernels.generator.schedules.cluster_split_k import (
    ClusterSplitK,
    SplitBlock,
    candidates,
    split,
)
from mirage_kernels.generator.schedules.loop import BUCKETS, MANY_TOKENS
from mirage_kernels.generator.schedules.register_operand import (
    MOST_FINISHED,
    RegisterBlock,
    RegisterOperand,
    can_run,
    choose,
    deepest,
    in_pairs,
    product_rows,
)
from mirage_kernels.generator.schedules.register_operand import candidates as every_candidate
from mirage_kernels.generator.schedules.register_operand.block import TAKEN_REGISTERS
from mirage_kernels.generator.target import target


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
        ring = knobs.stages * block.tma_tiles(knobs.rows) * (knobs.rows + 64) * 128
        sums = knobs.rows * 64 * 4 // 2  # of fp32, from the other block
        assert block.shared_bytes(knobs) >= ring + sums


Fused = Callable[..., Graph]
ON = target("sm_90a")
KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "sm_90a"
GATED = ["gated_mlp/K4096_N4096_fp16", "gated_mlp/K4096_N14336_bf16"]
LORA = ["lora_linear/K4096_N4096_R16_fp16", "lora_linear/K4096_N4096_R64_bf16"]


def recorded(name: str) -> TileProgram:
    record = load_record(KERNELS / f"{name}.json")
    return programs_of(record.recipe, record.graph, record.arch)[0]


def scaled(fused: Fused, k: int, n: int) -> TileProgram:
    return tile_program("mine", fused("x", shape=Shape("a test", {"K": k, "N": n})))


@pytest.mark.parametrize("name", GATED)
def test_more_than_16_tokens_are_held_where_weights_are_taken_as_they_lie(name: str) -> None:
    made = recorded(name)
    found = {v.knobs.tokens: v.knobs for v in variants(made, ON)}
    few, many = ("sliced_k",) * 2, ("register_operand",) * 2
    assert [found[m].schedule for m in (8, 16, 32, 64)] == [*few, *many]
    assert found[64].blocks == 1
    assert -(-made.extents["N"] // found[64].rows) <= ON.multiprocessors  # one wave


@pytest.mark.parametrize("name", LORA)
def test_where_other_blocks_compute_totals_pairs_hold_tokens(name: str) -> None:
    found = {v.knobs.tokens: (v.schedule, v.knobs.blocks) for v in variants(recorded(name), ON)}
    assert found == {
        **dict.fromkeys((8, 16), ("sliced_k", 1)),
        **dict.fromkeys((32, 64), ("register_operand", 2)),
    }


def test_a_single_producer_leaves_no_pairs() -> None:
    made = recorded(LORA[0])
    assert in_pairs(made, 64, ON) is not None
    assert in_pairs(made, 64, replace(ON, multiprocessors=129)) is None


def test_the_last_pair_has_rows_for_both_blocks() -> None:
    made = recorded(LORA[0])
    for rows, pair in ((4096, 64), (4096 - 16, 64), (4096 - 40, 0)):
        found = in_pairs(_with_rows(made, rows), 64, ON)
        assert (found.rows if found else 0) == pair
    assert in_pairs(recorded(GATED[0]), 64, ON) is None  # two weights


def _with_rows(made: TileProgram, rows: int) -> TileProgram:
    def cut(dim: Dim) -> Dim:
        return replace(dim, size=rows) if dim.name == made.roles.rows else dim

    def smaller(made: TileProgram) -> TileProgram:
        types = [replace(o.type, dims=tuple(map(cut, o.type.dims))) for o in made.inputs]
        inputs = tuple(replace(o, type=t) for o, t in zip(made.inputs, types, strict=True))
        return replace(made, inputs=inputs)

    assert made.consumers is not None
    return replace(smaller(made), consumers=smaller(made.consumers))


def changed(block: RegisterBlock, **counts: object) -> RegisterBlock:
    """Return a block that counts otherwise than its program says."""
    made = replace(block)
    vars(made).update(counts)
    return made


def test_weights_that_are_computed_with_are_not_for_this_plan(fused: Fused) -> None:
    assert not can_run(tile_program("mine", fused("w")))
    assert can_run(tile_program("mine", fused("x")))


def test_a_ring_of_pairs_has_two_turns() -> None:
    block = RegisterBlock.of(recorded(GATED[0]))
    knobs = block.sized(64, 64, 2)
    made = deepest(block, knobs, ON)
    assert made == replace(knobs, stages=2 * knobs.groups)
    assert deepest(block, knobs, replace(ON, shared_bytes=ON.shared_bytes // 2)) is None


def test_sums_vectors_and_barriers_lie_beside_the_ring(fused: Fused) -> None:
    block = RegisterBlock.of(recorded(GATED[0]))
    alone, pair = (replace(block.sized(64, 64, n), stages=4) for n in (1, 2))
    sums = 2 * 32 * 64 * 4 * 2  # products, rows of a block, tokens, fp32, warpgroups that send
    assert block.shared_bytes(pair) - block.shared_bytes(alone) == sums
    more = replace(pair, barriers=pair.barriers + 1)
    assert block.shared_bytes(more) - block.shared_bytes(pair) == 4 * 8
    block = RegisterBlock.of(scaled(fused, 4096, 4096))
    assert (block.loads[Layout.DEPTH], block.sums[Layout.TOKEN_SUMS], block.mapped) == (1, 1, 1)
    loads = {**block.loads, Layout.DEPTH: 0}
    plain = changed(block, loads=loads, sums={Layout.ACCUM: 1, Layout.TOKEN_SUMS: 0})
    beside = 2048 * 2 + 4 * 64 * 4  # half of the vector; two warpgroups of two blocks
    assert block.shared_bytes(pair) - plain.shared_bytes(pair) == beside


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
    sides = {rows: product_rows(rows) for rows in (64, 112, 128, 160, 192, 208)}
    assert sides == {64: 64, 112: 112, 128: 64, 160: 80, 192: 96, 208: 16}
    block = RegisterBlock.of(recorded(LORA[0]))
    assert deepest(block, block.sized(208, 64, 2), ON) is None


@pytest.mark.parametrize(
    ("name", "arch"),
    [*((GATED[0], a) for a in ("sm_80", "sm_100a")), ("lora_linear/K256_N4096_R16_fp16", "sm_90a")],
)
def test_elsewhere_and_with_a_short_depth_nothing_is_held(name: str, arch: str) -> None:
    found = {v.schedule for v in variants(recorded(name), target(arch))}
    assert "register_operand" not in found


@pytest.mark.parametrize("name", [GATED[0], LORA[1]])
@pytest.mark.parametrize("tokens", [16, 64])
def test_what_meets_fits_where_the_ring_was(name: str, tokens: int) -> None:
    block = RegisterBlock.of(recorded(name))
    fitting = [
        made
        for rows in range(16, 2 * MOST_FINISHED, 16)
        if (made := deepest(block, block.sized(rows, tokens), ON))
    ]
    assert fitting
    for made in fitting:
        assert made.stages % made.groups == 0
        assert block.reduction_bytes(made) <= block.ring_bytes(made)
        assert block.shared_bytes(made) <= ON.shared_bytes
        assert made.rows <= MOST_FINISHED


WIDE = ((16032, 128), (32000, 256), (128256, 256), (151936, 240))


@pytest.mark.parametrize(("extent", "rows"), WIDE)
@pytest.mark.parametrize("tokens", [32, 64])
def test_a_wide_weight_takes_as_few_waves_as_its_blocks_can(
    extent: int, rows: int, tokens: int
) -> None:
    made = choose(recorded(f"rms_norm_linear/K4096_N{extent}_bf16"), tokens, ON)
    assert made is not None
    assert (made.rows, made.blocks) == (rows, 1)


def test_short_steps_have_two_warpgroups_and_slow_ones_barriers_of_their_own() -> None:
    block = RegisterBlock.of(recorded(GATED[0]))

    def groups(made: RegisterOperand) -> tuple[int, int]:
        return made.groups, made.barriers

    assert [block.sized(rows, 64).groups for rows in (32, 64, 80, 112)] == [2, 2, 1, 1]
    assert changed(block, depth=4096 + 128).sized(32, 64).groups == 1
    assert groups(block.sized(32, 64)) == (2, 2)
    assert groups(block.sized(112, 32)) == (1, 2)
    assert groups(block.sized(32, 32)) == (2, 1)
    assert groups(changed(block, mapped=1).sized(32, 64)) == (2, 1)


# -- clusters of four, and more than 64 tokens -----------------------------------------------------

DOWN, NORMED = "linear/K14336_N4096_bf16", "rms_norm_gated_mlp/K4096_N14336_bf16"


def of_many(name: str, tokens: int) -> list[RegisterOperand]:
    """Return the knobs to try for a bucket."""
    return [*every_candidate(recorded(name), tokens, ON)]


@pytest.mark.parametrize("tokens", [16, 32, 64, 128])
def test_a_cluster_of_four_finishes_some_tokens_of_any_rows(tokens: int) -> None:
    block = RegisterBlock.of(recorded(DOWN))
    made = [knobs for knobs in of_many(DOWN, tokens) if knobs.blocks == 4]
    assert {144, 160} <= {knobs.rows for knobs in made}  # that pairs cannot halve for each warp
    for knobs in made:
        assert knobs.finished_rows == knobs.rows
        assert knobs.stages % knobs.turns == 0
        assert block.shared_bytes(knobs) <= ON.shared_bytes
        sums = knobs.rows * 64 * 4 * knobs.groups  # of fp32: a quarter from each block
        assert block.incoming_bytes(knobs) == sums


def test_a_warp_finishes_an_even_share_of_what_a_cluster_of_four_has() -> None:
    sizes = [(64, 1), (64, 2), (128, 2)]
    made = [RegisterOperand(tokens, 144, 2, groups, 4) for tokens, groups in sizes]
    assert [knobs.turns for knobs in made] == [1, 2, 1]
    assert [knobs.finished_blocks for knobs in made] == [5, 3, 5]  # of 18 blocks of rows


@pytest.mark.parametrize("name", [DOWN, NORMED])
def test_more_than_64_tokens_have_a_warpgroup_each_64_and_a_ring_of_all_shared_memory(
    name: str,
) -> None:
    block, made = RegisterBlock.of(recorded(name)), of_many(name, MANY_TOKENS)
    assert made
    for knobs in made:
        assert (knobs.groups, knobs.turns) == (2, 1)
        assert block.registers(knobs) <= TAKEN_REGISTERS
        assert knobs.barriers <= knobs.tma_tiles
    deepest_ring = max(made, key=block.ring_bytes)
    one_more = replace(deepest_ring, stages=deepest_ring.stages + 1)
    assert block.shared_bytes(one_more) > ON.shared_bytes


def test_one_tile_a_step_is_tried_where_rings_take_all_shared_memory() -> None:
    for tokens, blocks in ((64, 1), (64, 4), (128, 1)):
        made = {knobs.tma_tiles for knobs in of_many(DOWN, tokens) if knobs.blocks == blocks}
        assert made == ({2} if (tokens, blocks) == (64, 1) else {1, 2})


@pytest.mark.parametrize("name", LORA)
def test_totals_of_inner_rows_are_of_64_tokens_at_most(name: str) -> None:
    assert of_many(name, 64)
    assert not of_many(name, MANY_TOKENS)


def test_many_tokens_have_a_bucket_where_asked_for() -> None:
    made = recorded(NORMED)
    assert [*by_size(made, ON)] == [*BUCKETS]
    asked = by_size(made, ON, many=True)
    assert [*asked] == [*BUCKETS, MANY_TOKENS]
    assert [v.bucket for v in asked.values()] == [*BUCKETS, 0]
    assert asked[MANY_TOKENS].schedule == "register_operand"
    found = candidates_of_bucket((made,), MANY_TOKENS, ON, Wanted(4))
    assert {c.knobs.schedule for c in found} == {"register_operand"}
    assert [*by_size(recorded(LORA[0]), ON, many=True)] == [*BUCKETS]
