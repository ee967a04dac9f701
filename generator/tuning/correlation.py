"""Spearman's rank correlation: whether predictions order candidates as measurements do."""

from __future__ import annotations

from collections.abc import Sequence


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


def relative(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the pairs over the least of each side: what is comparable across buckets."""
    least = [min((p[side] for p in pairs), default=1.0) for side in (0, 1)]
    return [(first / least[0], second / least[1]) for first, second in pairs]


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in values]
