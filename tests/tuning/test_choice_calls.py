"""The choice of knobs over several calls: the least mean, the rule's within 2 %."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pretended_calls import KEY, OTHER, POINTS, RULE, THIRD, dense, tried

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.variants import attention_variants, name_of
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Bucket, Chosen, Tried, TriedForm, Tuned
from mirage_kernels.generator.tuning.choice import (
    NEVER,
    Prefill,
    chosen_form,
    chosen_knobs,
    chosen_of,
    prefill_from,
)
from mirage_kernels.generator.tuning.variants import chosen_row_variants

GOLDEN = Path(__file__).parents[1] / "golden"
H200 = target("sm_90a")
PROGRAM = attention_program("gqa", load_record(GOLDEN / "attention_gqa.json").graph)


def choice(*candidates: Tried, few: bool, rule: AttentionKnobs = RULE) -> Chosen:
    found = chosen_knobs(POINTS, candidates, rule, few=few)
    assert found is not None
    return found


def test_each_kind_of_call_is_chosen_by_its_own_workloads() -> None:
    candidates = (tried(RULE, 10, 40, 80), tried(OTHER, 20, 30, 60))
    assert choice(*candidates, few=False).knobs == RULE
    assert choice(*candidates, few=True).knobs == OTHER


def test_the_least_geometric_mean_over_the_floors_is_taken() -> None:
    candidates = (tried(RULE, 10, 40, 80), tried(OTHER, 10, 20, 100), tried(THIRD, 10, 30, 60))
    found = choice(*candidates, few=True)
    assert (found.knobs, found.ratio, found.rule_ratio) == (THIRD, 1.5, 2.0)


@pytest.mark.parametrize(("us", "kept"), [(10.15, RULE), (10.3, OTHER)])
def test_within_two_per_cent_the_rules_choice_stays(us: float, kept: AttentionKnobs) -> None:
    candidates = (tried(RULE, us, 1, 1), tried(OTHER, 10, 1, 1))
    assert choice(*candidates, few=False).knobs == kept
    assert choice(*candidates[::-1], few=False).knobs == kept


def test_calls_with_and_without_assumptions_count_alike() -> None:
    candidates = (tried(RULE, 10, 1, 1, assumed=0.9), tried(OTHER, 10.2, 1, 1, assumed=0.6))
    assert choice(*candidates, few=False).knobs == OTHER


def test_what_failed_is_never_chosen_and_without_calls_there_is_no_choice() -> None:
    failed = Tried(RULE, failed="spills 8 bytes")
    found = choice(failed, tried(OTHER, 10, 1, 1), few=False)
    assert (found.knobs, found.rule_ratio) == (OTHER, None)
    assert chosen_knobs(POINTS, [failed], RULE, few=False) is None
    assert chosen_knobs(POINTS[:1], [tried(RULE, 10)], RULE, few=True) is None


# -- variants by the catalog -----------------------------------------------------------------------


def tuned(usual: AttentionKnobs, few: AttentionKnobs, *measured: AttentionKnobs) -> Tuned:
    chosen = (Chosen(usual, 1.1, 1.2), Chosen(few, 1.1, 1.2, few_tiles=True))
    all_ = tuple(tried(k, 10, 20, 40) for k in (*measured, usual, few))
    rows = Bucket(8, chosen, POINTS, all_)
    return Tuned(KEY, (rows,), form="first")


def rules() -> tuple[AttentionKnobs, ...]:
    few, usual = (v.knobs for v in attention_variants(PROGRAM, H200) if v.bucket == 8)
    return usual, few


def test_a_kernel_never_tuned_or_without_the_rules_knobs_has_the_rules_variants() -> None:
    rule, other = attention_variants(PROGRAM, H200), replace(rules()[0], stages=2)
    assert chosen_row_variants(PROGRAM, H200, None) == rule
    assert chosen_row_variants(PROGRAM, H200, tuned(other, other)) == rule


def test_measured_knobs_take_the_place_of_the_rules() -> None:
    usual, few = rules()
    shorter = replace(few, stages=2)
    made = chosen_row_variants(PROGRAM, H200, tuned(usual, shorter, few))
    expected = [
        replace(v, knobs=shorter) if v.few_tiles else v for v in attention_variants(PROGRAM, H200)
    ]
    assert list(made) == expected


def test_one_variant_serves_all_calls_where_both_have_the_same_knobs() -> None:
    usual, few = rules()
    made = chosen_row_variants(PROGRAM, H200, tuned(usual, usual, few))
    assert [name_of(v) for v in made] == ["UpTo8Rows", "UpTo16Rows", "AnyRows"]


def test_knobs_that_no_longer_fit_are_an_error() -> None:
    usual, few = rules()
    with pytest.raises(PlanError, match="bytes of shared memory"):
        chosen_row_variants(PROGRAM, H200, tuned(replace(usual, stages=40), few, usual))


# -- dense calls -----------------------------------------------------------------------------------


def test_prefill_begins_where_pytorch_is_faster_from_there_on() -> None:
    points = [dense(16, 5, 9), dense(64, 9, 8.9), dense(128, 9, 10), dense(256, 12, 10)]
    assert prefill_from(points) == Prefill(256, 2560)
    assert prefill_from([*points, dense(512, 6, 9)]) == Prefill(NEVER, 0)


def test_many_sequences_make_up_for_few_tokens_each() -> None:
    few = [dense(128, 9, 10), dense(256, 9, 10), dense(512, 12, 10)]
    many = [dense(32, 9, 10, 32), dense(128, 12, 10, 8)]
    assert prefill_from([*few, *many]) == Prefill(128, 5120)


def test_without_measurements_there_is_no_rule_and_equal_times_are_ours() -> None:
    assert prefill_from([]) is None
    assert dense(128, 9, 9).served_by == "ours"


# -- muGraphs --------------------------------------------------------------------------------------


def test_the_first_mugraph_within_two_per_cent_of_the_fastest_is_taken() -> None:
    forms = [TriedForm("a", 1.5), TriedForm("b", None), TriedForm("c", 1.21), TriedForm("d", 1.2)]
    assert chosen_form(forms) == "c"
    assert chosen_form(forms[:2]) == "a"
    assert chosen_form(forms[1:2]) == "b"


# -- calls of few segments -------------------------------------------------------------------------


def test_calls_of_few_tiles_may_have_a_variant_where_the_rule_has_none() -> None:
    large = replace(RULE, rows=16)
    candidates = (tried(large, 10, 40, 80), tried(RULE, 20, 30, 60))
    found = chosen_of(POINTS, candidates, (large, None))
    assert {c.few_tiles: c.knobs for c in found} == {False: large, True: RULE}


def test_a_variant_for_few_tiles_has_small_tiles_or_those_of_all_calls() -> None:
    large, larger = replace(RULE, rows=16), replace(OTHER, rows=16)
    candidates = (tried(large, 10, 40, 80), tried(larger, 20, 10, 20), tried(RULE, 20, 42, 84))
    found = chosen_of(POINTS, candidates, (large, None))
    assert {c.few_tiles: c.knobs for c in found} == {False: large, True: large}


def test_a_bucket_without_a_variant_for_few_tiles_gets_one() -> None:
    few = next(v for v in attention_variants(PROGRAM, H200) if v.few_tiles)
    rule = next(v.knobs for v in attention_variants(PROGRAM, H200) if v.bucket == 16)
    chosen = (Chosen(rule, 1.1, 1.2), Chosen(few.knobs, 1.1, 1.2, few_tiles=True))
    rows = Bucket(16, chosen, POINTS, (tried(rule, 10, 20, 40),))
    made = chosen_row_variants(PROGRAM, H200, Tuned(KEY, (rows,), form="first"))
    names = ["UpTo8RowsFewTiles", "UpTo8Rows"]
    assert [name_of(v) for v in made] == [*names, "UpTo16RowsFewTiles", "UpTo16Rows", "AnyRows"]
    assert [v.knobs.rows for v in made] == [8, 8, 8, 16, 128]


def test_buckets_with_the_same_knobs_are_one() -> None:
    few, usual = (v for v in attention_variants(PROGRAM, H200) if v.bucket == 8)
    rule = next(v.knobs for v in attention_variants(PROGRAM, H200) if v.bucket == 16)
    chosen = (Chosen(usual.knobs, 1.1, 1.2), Chosen(few.knobs, 1.1, 1.2, few_tiles=True))
    rows = Bucket(16, chosen, POINTS, (tried(rule, 10, 20, 40),))
    made = chosen_row_variants(PROGRAM, H200, Tuned(KEY, (rows,), form="first"))
    assert [name_of(v) for v in made] == ["UpTo16RowsFewTiles", "UpTo16Rows", "AnyRows"]


def test_a_bucket_that_the_rule_lacks_stands_where_its_knobs_are_others() -> None:
    any_ = attention_variants(PROGRAM, H200)[-1].knobs
    few = next(v for v in attention_variants(PROGRAM, H200) if v.few_tiles)

    def made(*chosen: Chosen) -> list[str]:
        rows = Bucket(32, chosen, POINTS, (tried(any_, 10, 20, 40),))
        found = chosen_row_variants(PROGRAM, H200, Tuned(KEY, (rows,), form="first"))
        return [name_of(v) for v in found if v.bucket not in (8, 16)]

    usual = Chosen(any_, 1.1, 1.1)
    assert made(usual) == ["AnyRows"]
    assert made(usual, Chosen(any_, 1.1, 1.1, few_tiles=True)) == ["AnyRows"]
    small = ["UpTo32RowsFewTiles", "UpTo32Rows", "AnyRows"]
    assert made(usual, Chosen(few.knobs, 1.1, 1.1, few_tiles=True)) == small
    assert made(Chosen(few.knobs, 1.1, 1.1)) == small[1:]
