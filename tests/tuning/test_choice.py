"""Choice rules: functions of the numbers alone; the variants that follow from the catalog."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pretended import KEY, OTHER, POINTS, RULE, THIRD, dense, tried

from mirage_kernels import prefill
from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.variants import attention_variants
from mirage_kernels.generator.schedules.loop import Producers
from mirage_kernels.generator.schedules.register_operand import RegisterOperand
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.sliced_k import SlicedK
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import (
    Beyond,
    Bucket,
    Chosen,
    Point,
    Tried,
    TriedForm,
    Tuned,
    committed_path,
    load_catalog,
    rank_correlation,
)
from mirage_kernels.generator.tuning.choice import (
    NEVER,
    Prefill,
    chosen,
    chosen_form,
    chosen_knobs,
    chosen_of,
    fastest,
    finalists,
    most_tokens,
    prefill_from,
    prefill_rules,
    with_producers,
)
from mirage_kernels.generator.tuning.variants import chosen_row_variants

SLICED = SlicedK(8, 16, 4, 1, 2)
HELD = RegisterOperand(8, 16, 2)
GOLDEN = Path(__file__).parents[1] / "golden"
H200 = target("sm_90a")
PROGRAM = attention_program("gqa", load_record(GOLDEN / "attention_gqa.json").graph)
LOSS = 1.1  # times slower than the other one: what a call may take for the sake of a short rule


def one(knobs: Knobs, assumed_us: float | None, us: float | None = None) -> Tried:
    """Return a candidate of a bucket with one call; without a time it crashed."""
    if assumed_us is None:
        return Tried(knobs, 9, failed="crashed")
    return Tried(knobs, 9, () if us is None else (us,), (assumed_us,))


def timed(*times: float | None) -> list[Tried]:
    return [replace(one(SLICED, us), predicted_us=i) for i, us in enumerate(times)]


# -- one call --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "place"),
    [
        ((12.0, 10.0, 11.0), 1),
        ((12.0, 10.11, 10.0), 2),
        ((12.0, 10.09, 10.0), 1),
        ((None, 10.0), 1),
        ((None, None), None),
    ],
)
def test_the_fastest_is_chosen_and_the_first_within_a_per_cent(
    times: tuple[float | None, ...], place: int | None
) -> None:
    made = timed(*times)
    assert fastest(made) == (None if place is None else made[place])


@pytest.mark.parametrize(
    ("times", "places"),
    [
        ((11.0, 10.0, (12,), (10.2,), 9), [3, 4]),  # the fastest of every schedule
        ((10.0, 10.0, 9), [0, 2]),  # the rule's choice too
        ((10.0, (11.6,)), [0]),  # not of a schedule that is far behind
        ((10.0, 10.19, 10.21), [0, 1]),  # all that are close
    ],
)
def test_finalists_are_measured_without_assumptions(
    times: tuple[float | tuple[float], ...], places: list[int]
) -> None:
    """Times in parentheses are of another schedule."""
    made = [
        replace(one(SLICED, *us) if isinstance(us, tuple) else one(HELD, us), predicted_us=i)
        for i, us in enumerate(times)
    ]
    assert finalists(made) == [made[i] for i in places]


def test_calls_that_assume_nothing_count_twice() -> None:
    first, second = one(SLICED, 13.9, 15.4), one(HELD, 14.6, 14.8)
    assert chosen([first, second]) == chosen([second, first]) == second
    faster = replace(first, assumed_us=(13.3,))
    assert chosen([faster, second]) == faster
    rule, other = one(HELD, 10.0, 10.2), one(HELD, 9.0, 11.2)
    assert chosen([rule, one(HELD, 10.0), other]) == rule


def test_without_the_time_without_assumptions_the_other_decides() -> None:
    made = [one(HELD, 10.2), one(SLICED, 10.0)]
    assert chosen(made) == made[1]
    assert chosen([one(HELD, None)]) is None


def bucket(
    tokens: int, us: float | None, eager_us: float, library_us: float | None = None
) -> Bucket:
    point = Point(f"M={tokens}", 1.0, eager_us, library_us)
    return Bucket(tokens, (Chosen(SLICED, 1.0),), (point,), (one(SLICED, 1.0, us),))


@pytest.mark.parametrize(
    ("ours", "most"),
    [
        ((10, 10, 10), 128),
        ((10, 10.3, 10), 128),
        ((10, 10, 10.1), 64),
        ((10, 10.4, 10), 8),
        ((10.4, 10, 10), 1),
        ((9, None, 9), 8),
    ],
)
def test_a_kernel_serves_up_to_where_pytorch_is_faster(
    ours: tuple[float, float | None, float], most: int
) -> None:
    few, many, beyond = ours
    rows = [bucket(8, few, 10), bucket(64, many, 10)]
    assert most_tokens(rows, [Beyond(128, beyond, 10)], any_number=False) == most


@pytest.mark.parametrize(("library_us", "most"), [(11.0, 128), (9.9, 64), (9.0, 8)])
def test_what_the_library_runs_counts_for_more_than_pytorch_eager(
    library_us: float, most: int
) -> None:
    rows = [bucket(8, 5, 20), bucket(64, 10, 20, library_us)]
    assert most_tokens(rows, [Beyond(128, 10, 20, library_us)], any_number=False) == most


@pytest.mark.parametrize(
    ("fewer", "many", "most"), [(10, 10, 128), (10.1, 9, 64), (9, 10.1, 96), (None, 9, 64)]
)
def test_many_tokens_are_served_where_nothing_is_slower(
    fewer: float | None, many: float, most: int
) -> None:
    rows = [bucket(64, 10.3, 10), bucket(128, many, 10)]
    assert most_tokens(rows, [Beyond(96, fewer, 10)], any_number=False) == most


def test_what_is_measured_at_numbers_that_stand_for_all_serves_all() -> None:
    rows, beyond = [bucket(64, 9, 10)], [Beyond(8, 9, 10), Beyond(4096, 9, 10)]
    assert most_tokens(rows, beyond, any_number=True) == 0
    behind = [*beyond, Beyond(1024, 11, 10)]
    assert most_tokens(rows, behind, any_number=True) == 64


@pytest.mark.parametrize(
    ("few", "many", "producers"),  # times without producer blocks, and with them, as the rule has
    [
        ((10, 9), (10, 9), True),
        ((9, 10), (9, 10), False),
        ((9, 10), (20, 15), True),
        ((9.95, 10), (10, 10), True),  # equal: as the rule has it
        ((9, None), (9, 10), False),
        ((None, 10), (9, 10), True),
    ],
)
def test_a_kernel_has_producer_blocks_where_that_is_faster(
    few: tuple[float | None, ...], many: tuple[float | None, ...], producers: bool
) -> None:
    with_them = replace(SLICED, producers=Producers(16, 8, 2))
    made = {
        tokens: [one(with_them, times[1]), one(SLICED, times[0])]
        for tokens, times in ((8, few), (64, many))
    }
    assert with_producers(made) is producers


@pytest.mark.parametrize(
    ("pairs", "correlation"),
    [
        ([(1, 10), (2, 20), (3, 40)], 1.0),
        ([(1, 3), (2, 2), (3, 1)], -1.0),
        ([(1, 1), (1, 2), (2, 3)], 0.866),
        ([(1, 1), (2, 2)], None),
        ([(1, 1), (1, 2), (1, 3)], None),
    ],
)
def test_rank_correlation(pairs: list[tuple[float, float]], correlation: float | None) -> None:
    assert rank_correlation(pairs) == correlation


# -- several calls ---------------------------------------------------------------------------------


def choice(*candidates: Tried, few: bool) -> Chosen:
    found = chosen_knobs(POINTS, candidates, RULE, few=few)
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


def test_calls_of_few_tiles_have_small_tiles_or_those_of_all_calls() -> None:
    large, larger = replace(RULE, rows=16), replace(OTHER, rows=16)
    for candidates, few in (
        ((tried(large, 10, 40, 80), tried(RULE, 20, 30, 60)), RULE),
        ((tried(large, 10, 40, 80), tried(larger, 20, 10, 20), tried(RULE, 20, 42, 84)), large),
    ):
        found = chosen_of(POINTS, candidates, (large, None))
        assert {c.few_tiles: c.knobs for c in found} == {False: large, True: few}


def test_the_first_mugraph_within_two_per_cent_of_the_fastest_is_taken() -> None:
    forms = [TriedForm("a", 1.5), TriedForm("b", None), TriedForm("c", 1.21), TriedForm("d", 1.2)]
    assert [chosen_form(forms[:n]) for n in (4, 2)] == ["c", "a"]
    assert chosen_form(forms[1:2]) == "b"


# -- variants by the catalog -----------------------------------------------------------------------

MADE = attention_variants(PROGRAM, H200)
FEW, USUAL = (v.knobs for v in MADE if v.bucket == 8)
RULE_16 = next(v.knobs for v in MADE if v.bucket == 16)


def variants(
    usual: AttentionKnobs, few: AttentionKnobs | None, *measured: AttentionKnobs, size: int = 8
) -> dict[str, AttentionKnobs]:
    """Return the variants where one bucket has these choices after others were measured too."""
    chosen = [Chosen(usual, 1.1, 1.2)]
    chosen += [Chosen(few, 1.1, 1.2, few_tiles=True)] if few else []
    all_ = tuple(tried(k, 10, 20, 40) for k in measured)
    kernel = Tuned(KEY, (Bucket(size, tuple(chosen), POINTS, all_),), form="first")
    return {v.name("Rows"): v.knobs for v in chosen_row_variants(PROGRAM, H200, kernel)}


def test_a_kernel_never_tuned_or_without_the_rules_knobs_has_the_rules_variants() -> None:
    other = replace(USUAL, stages=2)
    assert chosen_row_variants(PROGRAM, H200, None) == MADE
    assert variants(other, other, other) == {v.name("Rows"): v.knobs for v in MADE}


def test_measured_knobs_take_the_place_of_the_rules() -> None:
    shorter = replace(FEW, stages=2)
    found = variants(USUAL, shorter, USUAL, FEW)
    assert found == {v.name("Rows"): v.knobs for v in MADE} | {"UpTo8RowsFewTiles": shorter}


def test_one_variant_serves_all_calls_where_both_have_the_same_knobs() -> None:
    assert [*variants(USUAL, USUAL, USUAL, FEW)] == ["UpTo8Rows", "UpTo16Rows", "AnyRows"]


def test_knobs_that_no_longer_fit_are_an_error() -> None:
    with pytest.raises(PlanError, match="bytes of shared memory"):
        variants(replace(USUAL, stages=40), FEW, USUAL, FEW)


def test_a_bucket_without_a_variant_for_few_tiles_gets_one() -> None:
    names = ["UpTo8RowsFewTiles", "UpTo8Rows", "UpTo16RowsFewTiles", "UpTo16Rows", "AnyRows"]
    found = variants(RULE_16, FEW, RULE_16, size=16)
    assert [*found] == names
    assert [knobs.rows for knobs in found.values()] == [8, 8, 8, 16, 128]


def test_buckets_with_the_same_knobs_are_one() -> None:
    names = ["UpTo16RowsFewTiles", "UpTo16Rows", "AnyRows"]
    assert [*variants(USUAL, FEW, RULE_16, size=16)] == names


def test_a_bucket_that_the_rule_lacks_stands_where_its_knobs_are_others() -> None:
    any_, small = MADE[-1].knobs, ["UpTo32RowsFewTiles", "UpTo32Rows", "AnyRows"]
    for usual, few, names in (
        (any_, None, small[2:]),
        (any_, any_, small[2:]),
        (any_, FEW, small),
        (FEW, None, small[1:]),
    ):
        found = variants(usual, few, any_, size=32)
        assert [name for name in found if "To8" not in name and "To16" not in name] == names


# -- dense calls -----------------------------------------------------------------------------------


def test_prefill_begins_where_pytorch_is_faster_from_there_on() -> None:
    points = [dense(16, 5, 9), dense(64, 9, 8.9), dense(128, 9, 10), dense(256, 12, 10)]
    assert prefill_from(points) == Prefill(256, 2560)
    assert prefill_from([*points, dense(512, 6, 9)]) == Prefill(NEVER, 0)
    assert prefill_from([]) is None
    assert dense(128, 9, 9).served_by == "ours"


def test_many_sequences_make_up_for_few_tokens_each() -> None:
    few = [dense(128, 9, 10), dense(256, 9, 10), dense(512, 12, 10)]
    many = [dense(32, 9, 10, 32), dense(128, 12, 10, 8)]
    assert prefill_from([*few, *many]) == Prefill(128, 5120)


def test_the_librarys_rule_is_the_catalogs_and_no_call_goes_to_what_is_much_slower() -> None:
    catalog = load_catalog(committed_path())
    rules = prefill_rules(catalog, "sm_90a")
    assert {at: (rule.tokens, rule.lines) for at, rule in rules.items()} == prefill.MEASURED
    for kernel in (k for s in catalog.sections for k in s.kernels):
        for call in kernel.dense:
            kind = prefill.kind_of(call.tokens, call.keys, causal=call.causal)
            served = rules[kind, kernel.key.shape["D"]].serves(call)
            taken, other = (call.us, call.sdpa_us) if not served else (call.sdpa_us, call.us)
            assert taken <= LOSS * other, f"{kernel.key.name} {call}"
