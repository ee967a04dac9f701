"""Variants of attention kernels: buckets of rows, pipelines that fit, what tuning tries."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from attention_graphs import mugraph

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import AttentionProgram, Do
from mirage_kernels.generator.schedules.attention.variants import (
    AttentionVariant,
    RowBucket,
    attention_variants,
    row_buckets,
    with_dynamic,
)
from mirage_kernels.generator.schedules.flash_decode import (
    BLOCK_SHAPES,
    FEW_TILES,
    FEWEST_STAGES,
    MOST_STAGES,
    FlashDecode,
)
from mirage_kernels.generator.schedules.loop import RESERVED_BYTES
from mirage_kernels.generator.schedules.wgmma_attention import WgmmaAttention, takes_many_rows
from mirage_kernels.generator.target import TARGETS, target

H200 = target("sm_90a")
each_depth = pytest.mark.parametrize("depth", [64, 96, 128, 192, 256])


def program(recipe: str = "gqa", depth: int = 128) -> AttentionProgram:
    made = attention_program(recipe, mugraph(recipe))
    return replace(made, depth=depth) if recipe != "mla_decode" else made


def of_depth(depth: int, arch: str = "sm_90a") -> tuple[AttentionVariant, ...]:
    return attention_variants(program(depth=depth), target(arch))


def of_few_rows(depth: int) -> list[AttentionVariant]:
    return [v for v in of_depth(depth) if isinstance(v.knobs, FlashDecode)]


def crowded(depth: int) -> FlashDecode:
    """Return the knobs of the first variant that is not for few work tiles."""
    return next(v.knobs for v in of_depth(depth) if not v.few_tiles)


@pytest.mark.parametrize(("depth", "rows"), [(64, {8, 16}), (96, {8, 16}), (256, {8})])
def test_longer_lines_leave_room_for_fewer_rows(depth: int, rows: set[int]) -> None:
    assert {v.knobs.rows for v in of_few_rows(depth)} == rows


@pytest.mark.parametrize(("depth", "rows"), [(64, 64), (128, 128)])
def test_many_rows_have_a_variant_of_their_own(depth: int, rows: int) -> None:
    last = of_depth(depth)[-1]
    assert (last.name("Rows"), last.knobs.rows, last.knobs.producers) == ("AnyRows", rows, 4)
    assert {v.bucket for v in of_few_rows(depth)} == {8, 16}


def test_many_rows_need_the_warpgroup_instruction_and_a_length_that_is_planned() -> None:
    assert [v for v in of_depth(64, "sm_80") if isinstance(v.knobs, WgmmaAttention)] == []
    assert [v for v in of_depth(96) if isinstance(v.knobs, WgmmaAttention)] == []


def test_keys_that_are_computed_with_have_no_tiles_of_many_rows() -> None:
    gqa = program()
    assert takes_many_rows(gqa)
    (keys,) = (s for s in gqa.loop if s.do is Do.KEYS)
    scaled = replace(keys, do=Do.MAP, out="scaled", args=(keys.out,), op="neg")
    assert not takes_many_rows(replace(gqa, loop=(*gqa.loop, scaled)))


@each_depth
def test_the_last_variant_takes_any_number_of_rows(depth: int) -> None:
    found = of_depth(depth)
    assert (found[-1].bucket, found[-1].name("Rows")) == (0, "AnyRows")
    limited = [v for v in found if v.bucket]
    assert [v.bucket for v in limited] == [v.knobs.rows for v in limited]


@pytest.mark.parametrize("arch", sorted(TARGETS))
@each_depth
def test_every_variant_fits_its_gpu(arch: str, depth: int) -> None:
    limit = TARGETS[arch].shared_bytes
    assert max(v.knobs.shared_bytes(depth) for v in of_depth(depth, arch)) <= limit


@pytest.mark.parametrize("depth", [64, 96, 128])
def test_a_pipeline_is_as_deep_as_fits(depth: int) -> None:
    for variant in of_few_rows(depth):
        knobs = variant.knobs
        assert (knobs.blocks, knobs.warps) in (*BLOCK_SHAPES, FEW_TILES)
        share = (H200.shared_bytes + RESERVED_BYTES) // knobs.blocks - RESERVED_BYTES
        deeper = replace(knobs, stages=knobs.stages + 1)
        assert knobs.stages == MOST_STAGES or deeper.shared_bytes(depth) > share


def test_two_blocks_share_a_multiprocessor_where_their_pipelines_fit() -> None:
    for depth in (64, 128):
        knobs = crowded(depth)
        assert (knobs.blocks, knobs.warps) == (2, 4)
        both = 2 * (knobs.shared_bytes(depth) + RESERVED_BYTES)
        assert both <= H200.shared_bytes + RESERVED_BYTES


def test_a_block_stays_alone_where_two_pipelines_do_not_fit() -> None:
    (only,) = of_depth(256)
    both = 2 * (replace(only.knobs, stages=FEWEST_STAGES).shared_bytes(256) + RESERVED_BYTES)
    assert only.knobs.blocks == 1
    assert both > H200.shared_bytes + RESERVED_BYTES


def dynamic(recipe: str, depth: int = 128) -> list[AttentionVariant]:
    planned = program(recipe, depth)
    before = attention_variants(planned, H200)
    made = with_dynamic(planned, before)
    assert tuple(v for v in made if not v.knobs.is_dynamic) == before
    return [v for v in made if v.knobs.is_dynamic]


@pytest.mark.parametrize("recipe", ["gqa", "qk_norm_attention"])
def test_small_blocks_have_a_variant_that_claims_whole_work_tiles(recipe: str) -> None:
    (found,) = dynamic(recipe)
    knobs = crowded(128)
    assert (found.name("Rows"), found.bucket) == ("UpTo8RowsManyTiles", 8)
    assert found.knobs == replace(knobs, dynamic=1)
    assert found.to_json()["dynamic"] == 1


@pytest.mark.parametrize("recipe", ["sliding_window_attention", "gqa_full"])
def test_work_tiles_that_may_differ_are_not_scheduled_dynamically(recipe: str) -> None:
    assert dynamic(recipe) == []


def test_only_what_was_measured_is_scheduled_dynamically() -> None:
    assert dynamic("gqa", 64) == dynamic("gqa", 256) == []
    assert dynamic("qk_layer_norm_attention") == []


def test_a_pipeline_counts_padded_lines() -> None:
    knobs = FlashDecode(rows=8, keys=16, warps=8, stages=2, blocks=1)
    padded = knobs.shared_bytes(128) - knobs.shared_bytes(96)
    assert padded < replace(knobs, stages=3).shared_bytes(96) - knobs.shared_bytes(96)


def test_every_stage_of_a_pipeline_has_a_barrier() -> None:
    knobs = FlashDecode(rows=8, keys=16, warps=16, stages=2, blocks=1)
    stages = replace(knobs, stages=3).shared_bytes(128) - knobs.shared_bytes(128)
    assert stages == 16 * (16 * 2 * 128 * 2 + 8)


def test_unaligned_lines_are_refused() -> None:
    with pytest.raises(PlanError, match="lines of 100 elements are not 16-byte aligned"):
        of_depth(100)


def test_a_pipeline_that_never_fits_is_refused() -> None:
    with pytest.raises(PlanError, match="2 stages of 1024 elements need more shared memory"):
        of_depth(1024)


def test_a_pass_of_the_loop_is_a_step_of_every_warp() -> None:
    gqa = program()
    tiles = FlashDecode(8, 16, 8, 2, 1).tiles(gqa.roles)
    assert tiles == {"B": 1, "Hkv": 1, "G": 8, "L": 128, "L_parts": 384}


def test_a_pass_of_many_rows_is_a_step_of_every_group_of_warpgroups() -> None:
    gqa = program()
    tiles = [of_depth(depth)[-1].knobs.tiles(gqa.roles) for depth in (64, 128)]
    assert [(t["G"], t["L"]) for t in tiles] == [(64, 256), (128, 64)]


@pytest.mark.parametrize(("recipe", "sums"), [("gqa", 0), ("qk_norm_attention", 1)])
def test_many_rows_wait_late_where_lines_of_keys_are_summed(recipe: str, sums: int) -> None:
    knobs = attention_variants(program(recipe), H200)[-1].knobs
    assert knobs.key_sums == sums
    assert ("key_sums" in knobs.to_json()) == bool(sums)


@pytest.mark.parametrize(("depth", "most"), [(64, 211712), (128, 202496)])
def test_shared_memory_of_many_rows(depth: int, most: int) -> None:
    assert of_depth(depth)[-1].knobs.shared_bytes(depth) == most


def test_rows_of_several_tokens_share_a_tile() -> None:
    roles = program("sliding_window_attention").roles
    tiles = FlashDecode(8, 16, 4, 2, 2).tiles(roles)
    assert (tiles["T"], tiles["G"], tiles["L"]) == (2, 4, 64)


def buckets(depth: int, top: int = 9, recipe: str = "gqa") -> dict[int, RowBucket]:
    return {b.rows: b for b in row_buckets(program(recipe, depth), H200, top)}


@each_depth
def test_the_rules_choices_stand_first(depth: int) -> None:
    found = buckets(depth)
    for variant in attention_variants(program(depth=depth), H200):
        bucket = found[variant.bucket]
        assert variant.knobs == (bucket.rule_of_few if variant.few_tiles else bucket.rule)
        assert variant.knobs in bucket.knobs[:2]


@each_depth
def test_every_candidate_fits_and_stands_once(depth: int) -> None:
    for bucket in buckets(depth).values():
        assert len(bucket.knobs) == len(set(bucket.knobs)) > 1
        for knobs in bucket.knobs:
            share = (H200.shared_bytes + RESERVED_BYTES) // knobs.blocks - RESERVED_BYTES
            assert knobs.shared_bytes(depth) <= share


def test_stages_blocks_and_tiles_are_varied() -> None:
    few = buckets(64)[8].knobs
    assert len({k.stages for k in few}) > 2
    assert {(k.blocks, k.warps) for k in few} >= {(2, 4), (1, 8), (1, 4)}
    assert {k.rows for k in buckets(64)[16].knobs} == {8, 16}


def test_many_rows_have_other_tiles_and_those_of_few_rows() -> None:
    many = buckets(64)[0].knobs
    wide = {(k.rows, k.keys) for k in many if isinstance(k, WgmmaAttention)}
    assert wide == {(64, 128), (128, 64), (64, 64), (128, 128)}
    assert {k.rows for k in many if isinstance(k, FlashDecode)} == {8, 16}


@pytest.mark.parametrize("depth", [64, 128])
def test_warpgroups_with_keys_of_their_own_have_a_stage_to_spare(depth: int) -> None:
    for knobs in chain.from_iterable(b.knobs for b in buckets(depth).values()):
        assert isinstance(knobs, FlashDecode) or knobs.stages > 2 * knobs.groups


def test_keys_that_are_summed_are_kept_until_they_are() -> None:
    many = buckets(64, recipe="qk_norm_attention")[0]
    assert {k.key_sums for k in many.knobs if isinstance(k, WgmmaAttention)} == {1}


def test_no_more_than_wanted_stand_beside_the_rules() -> None:
    for bucket in buckets(128, top=2).values():
        rules = {bucket.rule, bucket.rule_of_few}
        assert len(set(bucket.knobs) - rules) <= 2


def test_what_was_chosen_before_is_measured_again() -> None:
    all_ = buckets(64)[8].knobs
    (bucket, *_) = row_buckets(program(depth=64), H200, 0, known=(all_[-1],))
    assert bucket.knobs == (*all_[:2], all_[-1])


def test_calls_of_few_tiles_may_have_no_variant_of_their_own() -> None:
    bucket = buckets(128)[16]
    assert bucket.rule_of_few is None


def test_tiles_of_many_rows_serve_all_rows_over_latents() -> None:
    latent = program("mla_decode")
    (variant,) = attention_variants(latent, H200)
    assert variant.bucket == 0
    knobs = variant.knobs
    assert isinstance(knobs, WgmmaAttention)
    assert (knobs.rows, knobs.keys, knobs.stages, knobs.parts) == (64, 64, 2, 2)
    assert (knobs.groups, knobs.pass_keys) == (1, 64)  # both warpgroups take every step
    (elsewhere,) = attention_variants(latent, target("sm_80"))
    assert isinstance(elsewhere.knobs, FlashDecode)


def test_latents_have_shorter_pipelines_and_fewer_warps() -> None:
    (bucket,) = row_buckets(program("mla_decode"), target("sm_80"), 9)
    assert all(isinstance(k, FlashDecode) and k.rows == 8 for k in bucket.knobs)
    assert len({(k.warps, k.stages) for k in bucket.knobs}) > 1


def test_latents_are_measured_by_flash_decode_too() -> None:
    (bucket,) = row_buckets(program("mla_decode"), H200, 9)
    assert bucket.knobs[0] == bucket.rule
    assert {type(k) for k in bucket.knobs} == {WgmmaAttention, FlashDecode}


@pytest.mark.parametrize(
    "change",
    [
        {"latent_product_plus_k_rope_product": {"op": "sub"}},
        {"scaled_latent_product_plus_k_rope_product": {"args": ("scale", "latent_product")}},
    ],
)
def test_products_over_latents_are_only_added(change: dict[str, dict[str, object]]) -> None:
    latent = program("mla_decode")
    assert takes_many_rows(latent)
    loop = tuple(replace(s, **change.get(s.out, {})) for s in latent.loop)  # type: ignore[arg-type]
    assert not takes_many_rows(replace(latent, loop=loop))


def test_small_tiles_may_serve_some_rows_that_the_rule_gives_to_tiles_of_many() -> None:
    found = buckets(128)
    assert list(found) == [8, 16, 32, 0]
    assert found[32].rule == found[0].rule
    assert {k.rows for k in found[32].knobs} == {8, 128}
    assert 32 not in buckets(256)
