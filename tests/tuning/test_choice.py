"""Choice rules: functions of the numbers alone."""

from __future__ import annotations

import statistics
import sys

import pytest

from mirage_kernels.generator.plan.variants import Knobs
from mirage_kernels.generator.tuning.catalog import Beyond, Bucket, Tried
from mirage_kernels.generator.tuning.choice import fastest, most_tokens, rank_correlation

KNOBS = Knobs(8, 16, 4, 1, 2)


def tried(*times: float | None) -> list[Tried]:
    return [Tried(KNOBS, i, us, "" if us is not None else "crashed") for i, us in enumerate(times)]


def test_the_fastest_is_chosen() -> None:
    assert fastest(tried(12.0, 10.0, 11.0)) == tried(12.0, 10.0, 11.0)[1]


def test_of_equal_times_the_first_in_predicted_order_is_chosen() -> None:
    made = tried(12.0, 10.09, 10.0)
    assert fastest(made) == made[1]


def test_more_than_one_percent_is_no_equal_time() -> None:
    made = tried(12.0, 10.11, 10.0)
    assert fastest(made) == made[2]


def test_what_failed_is_not_chosen() -> None:
    made = tried(None, 10.0)
    assert fastest(made) == made[1]


def test_where_everything_failed_nothing_is_chosen() -> None:
    assert fastest(tried(None, None)) is None


def bucket(tokens: int, us: float | None, eager_us: float) -> Bucket:
    return Bucket(tokens, KNOBS, 1.0, us, 1.0, eager_us, None, ())


@pytest.mark.parametrize(
    ("ours", "most"),
    [
        ((10, 10, 10), 128),
        ((10, 10, 10.3), 128),
        ((10, 10, 10.4), 64),
        ((10, 10.4, 10), 8),
        ((10.4, 10, 10), 1),
    ],
)
def test_a_kernel_serves_up_to_where_pytorch_is_faster(
    ours: tuple[float, float, float], most: int
) -> None:
    few, many, beyond = ours
    rows = [bucket(8, few, 10), bucket(64, many, 10)]
    assert most_tokens(rows, [Beyond(128, beyond, 10)]) == most


def test_a_kernel_does_not_serve_what_was_not_measured_by_default() -> None:
    assert most_tokens([bucket(8, 9, 10), bucket(64, None, 10)], [Beyond(128, 9, 10)]) == 8


def test_without_a_measurement_above_the_buckets_it_serves_the_buckets() -> None:
    assert most_tokens([bucket(8, 9, 10), bucket(64, 9, 10)], []) == 64


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


@pytest.mark.skipif(sys.version_info < (3, 12), reason="ranked correlation came with Python 3.12")
def test_rank_correlation_is_that_of_the_standard_library() -> None:
    first, second = [3.0, 1.0, 2.0, 2.0, 5.0], [1.0, 1.0, 4.0, 2.0, 3.0]
    wanted = statistics.correlation(first, second, method="ranked")  # type: ignore[call-arg]
    assert rank_correlation(list(zip(first, second, strict=True))) == round(wanted, 3)
