"""What measurements decide: the variant of a bucket, the most tokens that a kernel serves.

All rules are functions of the numbers alone: the same measurements give the same catalog.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_kernels.generator.tuning.catalog import Beyond, Bucket, Tried

EQUAL = 1.01  # times that are closer than 1 % count as equal
NOISE = 1.03  # between two runs of anything, by what `bench` shows


def fastest(tried: Sequence[Tried]) -> Tried | None:
    """Return the first, in the order of prediction, within 1 % of the fastest; None: all failed."""
    times = [t.us for t in tried if t.us is not None]
    if not times:
        return None
    return next(t for t in tried if t.us is not None and t.us <= EQUAL * min(times))


def most_tokens(buckets: Sequence[Bucket], beyond: Sequence[Beyond]) -> int:
    """Return the largest measured number of tokens up to which ours is not behind PyTorch.

    Ours are calls that promise nothing. At least 1, the fewest that the table can say.
    """
    most = 1
    rows: list[Bucket | Beyond] = [*buckets, *beyond]
    for row in rows:
        if row.default_us is None or row.default_us > NOISE * row.eager_us:
            break
        most = row.tokens
    return most


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's rank correlation of pairs; equal values share the mean of their ranks.

    None where it has no meaning: fewer than three pairs, or all values of a side equal.
    """
    if len(pairs) < 3:
        return None
    first, second = (_ranks([p[side] for p in pairs]) for side in (0, 1))
    mean = (len(pairs) + 1) / 2
    spread = [sum((r - mean) ** 2 for r in ranks) for ranks in (first, second)]
    if not all(spread):
        return None
    together = sum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True))
    return round(float(together / (spread[0] * spread[1]) ** 0.5), 3)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in values]


def predicted_and_measured(tried: Sequence[Tried]) -> list[tuple[float, float]]:
    """Return prediction and measurement of every candidate that was measured."""
    return [(t.predicted_us, t.us) for t in tried if t.us is not None]
