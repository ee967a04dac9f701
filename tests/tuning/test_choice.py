"""Choice rules: functions of the numbers alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_kernels.generator.schedules.loop import Producers
from mirage_kernels.generator.schedules.register_operand import RegisterOperand
from mirage_kernels.generator.schedules.sliced_k import SlicedK
from mirage_kernels.generator.tuning.catalog import (
    Beyond,
    Bucket,
    Chosen,
    Point,
    Tried,
    rank_correlation,
)
from mirage_kernels.generator.tuning.choice import (
    chosen,
    fastest,
    finalists,
    most_tokens,
    with_producers,
)

KNOBS = SlicedK(8, 16, 4, 1, 2)


def tried(*times: float | None) -> list[Tried]:
    return [
        Tried(KNOBS, i, assumed_us=() if us is None else (us,), failed="" if us else "crashed")
        for i, us in enumerate(times)
    ]


def test_the_fastest_is_chosen_and_the_first_within_a_per_cent() -> None:
    assert fastest(made := tried(12.0, 10.0, 11.0)) == made[1]
    assert fastest(made := tried(12.0, 10.11, 10.0)) == made[2]
    assert fastest(made := tried(12.0, 10.09, 10.0)) == made[1]
    assert fastest(made := tried(None, 10.0)) == made[1]
    assert fastest(tried(None, None)) is None


HELD = RegisterOperand(8, 16, 2)


def test_the_fastest_of_every_plan_is_measured_without_assumes() -> None:
    made = [
        Tried(HELD, 8, assumed_us=(11.0,)),
        Tried(HELD, 9, assumed_us=(10.0,)),
        Tried(KNOBS, 9, assumed_us=(12,)),
        Tried(KNOBS, 10, assumed_us=(10.2,)),
    ]
    made.append(Tried(HELD, 11, assumed_us=(9,)))
    assert finalists(made) == [made[3], made[4]]


def test_the_rule_s_choice_is_measured_without_assumes_too() -> None:
    made = [
        Tried(HELD, 9, assumed_us=(10.0,)),
        Tried(HELD, 10, assumed_us=(10.0,)),
        Tried(HELD, 11, assumed_us=(9,)),
    ]
    assert finalists(made) == [made[0], made[2]]
    made = [replace(made[0], us=(10.2,)), made[1], replace(made[2], us=(11.2,))]
    assert chosen(made) == made[0]


def test_a_plan_that_is_far_behind_is_not() -> None:
    made = [Tried(HELD, 9, assumed_us=(10.0,)), Tried(KNOBS, 9, assumed_us=(11.6,))]
    assert finalists(made) == made[:1]


def test_plans_are_chosen_by_both_times() -> None:
    made = [
        Tried(HELD, 9, us=(10.4,), assumed_us=(10.2,)),
        Tried(KNOBS, 9, us=(11.2,), assumed_us=(10.0,)),
    ]
    assert chosen(made) == made[0]
    assert chosen(made[::-1]) == made[0]


def test_all_that_are_close_are_measured_without_assumes() -> None:
    made = [
        Tried(HELD, 9, assumed_us=(10.0,)),
        Tried(HELD, 10, assumed_us=(10.19,)),
        Tried(HELD, 11, assumed_us=(10.21,)),
    ]
    assert finalists(made) == made[:2]


def test_calls_that_assume_nothing_count_twice() -> None:
    made = [
        Tried(KNOBS, 9, us=(15.4,), assumed_us=(13.9,)),
        Tried(HELD, 10, us=(14.8,), assumed_us=(14.6,)),
    ]
    assert chosen(made) == made[1]
    assert chosen([replace(made[0], assumed_us=(13.3,)), made[1]]) == replace(
        made[0], assumed_us=(13.3,)
    )


def test_without_the_time_without_assumes_the_other_decides() -> None:
    made = [Tried(HELD, 9, assumed_us=(10.2,)), Tried(KNOBS, 9, assumed_us=(10.0,))]
    assert chosen(made) == made[1]
    assert chosen([Tried(HELD, 9, failed="crashed")]) is None


def bucket(tokens: int, us: float | None, eager_us: float) -> Bucket:
    tried = Tried(KNOBS, 1.0, () if us is None else (us,), (1.0,))
    point = Point(f"M={tokens}", 1.0, eager_us)
    return Bucket(tokens, (Chosen(KNOBS, 1.0),), (point,), (tried,))


def with_library(made: Bucket, us: float) -> Bucket:
    return replace(made, points=(replace(made.points[0], library_us=us),))


def served(buckets: list[Bucket], beyond: list[Beyond]) -> int:
    return most_tokens(buckets, beyond, any_number=False)


@pytest.mark.parametrize(
    ("ours", "most"),
    [
        ((10, 10, 10), 128),
        ((10, 10.3, 10), 128),
        ((10, 10, 10.1), 64),
        ((10, 10.4, 10), 8),
        ((10.4, 10, 10), 1),
    ],
)
def test_a_kernel_serves_up_to_where_pytorch_is_faster(
    ours: tuple[float, float, float], most: int
) -> None:
    few, many, beyond = ours
    rows = [bucket(8, few, 10), bucket(64, many, 10)]
    assert served(rows, [Beyond(128, beyond, 10)]) == most


@pytest.mark.parametrize(("library_us", "most"), [(11.0, 128), (9.9, 64), (9.0, 8)])
def test_what_the_library_runs_counts_for_more_than_pytorch_eager(
    library_us: float, most: int
) -> None:
    rows = [bucket(8, 5, 20), with_library(bucket(64, 10, 20), library_us)]
    assert served(rows, [Beyond(128, 10, 20, library_us)]) == most


def test_a_kernel_serves_only_what_was_measured_by_default() -> None:
    assert served([bucket(8, 9, 10), bucket(64, None, 10)], [Beyond(128, 9, 10)]) == 8
    assert served([bucket(8, 9, 10), bucket(64, 9, 10)], []) == 64


def test_what_is_measured_at_numbers_that_stand_for_all_serves_all() -> None:
    rows, beyond = [bucket(64, 9, 10)], [Beyond(8, 9, 10), Beyond(4096, 9, 10)]
    assert most_tokens(rows, beyond, any_number=True) == 0
    behind = [*beyond, Beyond(1024, 11, 10)]
    assert most_tokens(rows, behind, any_number=True) == 64


APART = replace(KNOBS, producers=Producers(16, 8, 2))


def both(own: float | None, apart: float | None) -> list[Tried]:
    """Return the rule's choice, apart, and one with nothing apart."""
    made = tried(apart, own)
    return [replace(made[0], knobs=APART), made[1]]


@pytest.mark.parametrize(
    ("few", "many", "apart"),
    [
        (both(10, 9), both(10, 9), True),
        (both(9, 10), both(9, 10), False),
        (both(9, 10), both(20, 15), True),
        (both(9.95, 10), both(10, 10), True),  # equal: as the rule has it
        (both(9, None), both(9, 10), False),
        (both(None, 10), both(9, 10), True),
    ],
)
def test_a_kernel_computes_something_apart_where_that_is_faster(
    few: list[Tried], many: list[Tried], apart: bool
) -> None:
    assert with_producers({8: few, 64: many}) is apart


@pytest.mark.parametrize(
    ("pairs", "correlation"),
    [
        ([(1, 10), (2, 20), (3, 40)], 1.0),
        ([(1, 3), (2, 2), (3, 1)], -1.0),
        ([(1, 1), (2, 3), (3, 2)], 0.5),
        ([(1, 1), (1, 2), (2, 3)], 0.866),
        ([(1, 1), (2, 2)], None),
        ([(1, 1), (1, 2), (1, 3)], None),
    ],
)
def test_rank_correlation(pairs: list[tuple[float, float]], correlation: float | None) -> None:
    assert rank_correlation(pairs) == correlation
