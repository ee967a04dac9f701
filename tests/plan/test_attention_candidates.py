"""Candidates of attention: the rule's choice first, others that fit, each once."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.program import AttentionProgram
from mirage_kernels.generator.schedules.attention.variants import (
    RowBucket,
    attention_variants,
    row_buckets,
)
from mirage_kernels.generator.schedules.flash_decode import FlashDecode
from mirage_kernels.generator.schedules.loop import RESERVED_BYTES
from mirage_kernels.generator.schedules.wgmma_attention import WgmmaAttention
from mirage_kernels.generator.target import target

GOLDEN = Path(__file__).parents[1] / "golden"
H200 = target("sm_90a")
each_depth = pytest.mark.parametrize("depth", [64, 96, 128, 192, 256])


def program(recipe: str = "gqa", depth: int = 128) -> AttentionProgram:
    made = attention_program(recipe, load_record(GOLDEN / f"attention_{recipe}.json").graph)
    return replace(made, depth=depth)


def buckets(depth: int, top: int = 9, recipe: str = "gqa") -> dict[int, RowBucket]:
    return {b.rows: b for b in row_buckets(program(recipe, depth), H200, top)}


@each_depth
def test_the_rules_choices_stand_first(depth: int) -> None:
    found = buckets(depth)
    for variant in attention_variants(program(depth=depth), H200):
        bucket = found[variant.bucket]
        assert bucket.rules(few=variant.few_tiles) == variant.knobs
        assert variant.knobs in bucket.knobs[:2]


@each_depth
def test_every_candidate_fits_and_stands_once(depth: int) -> None:
    for bucket in buckets(depth).values():
        assert len(bucket.knobs) == len(set(bucket.knobs)) > 1
        for knobs in bucket.knobs:
            share = (H200.shared_bytes + RESERVED_BYTES) // knobs.blocks - RESERVED_BYTES
            assert knobs.shared_bytes(depth) <= share


def test_rings_blocks_and_tiles_are_varied() -> None:
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
def test_warpgroups_with_keys_of_their_own_have_a_slot_to_spare(depth: int) -> None:
    for knobs in chain.from_iterable(b.knobs for b in buckets(depth).values()):
        assert isinstance(knobs, FlashDecode) or knobs.stages > 2 * knobs.groups


def test_keys_that_are_summed_are_kept_until_they_are() -> None:
    many = buckets(64, recipe="qk_norm_attention")[0]
    assert {k.key_sums for k in many.knobs if isinstance(k, WgmmaAttention)} == {1}


def test_no_more_than_wanted_stand_beside_the_rules() -> None:
    for bucket in buckets(128, top=2).values():
        rules = {bucket.rule, bucket.rules(few=True)}
        assert len(set(bucket.knobs) - rules) <= 2


def test_what_was_chosen_before_is_measured_again() -> None:
    all_ = buckets(64)[8].knobs
    (bucket, *_) = row_buckets(program(depth=64), H200, 0, known=(all_[-1],))
    assert bucket.knobs == (*all_[:2], all_[-1])


def test_calls_of_few_tiles_may_have_no_variant_of_their_own() -> None:
    bucket = buckets(128)[16]
    assert bucket.rule_of_few is None
    assert bucket.rules(few=True) == bucket.rule


def test_latents_have_shorter_rings_and_fewer_warps() -> None:
    golden = load_record(GOLDEN / "attention_mla_decode.json")
    (bucket,) = row_buckets(attention_program("mla_decode", golden.graph), H200, 9)
    assert all(isinstance(k, FlashDecode) and k.rows == 8 for k in bucket.knobs)
    assert len({(k.warps, k.stages) for k in bucket.knobs}) > 1


def test_small_tiles_may_serve_some_rows_that_the_rule_gives_to_tiles_of_many() -> None:
    found = buckets(128)
    assert list(found) == [8, 16, 32, 0]
    assert found[32].rule == found[0].rule
    assert {k.rows for k in found[32].knobs} == {8, 128}
    assert 32 not in buckets(256)
