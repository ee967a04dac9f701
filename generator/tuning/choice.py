"""What measurements decide: the variant of a bucket, the most tokens that a kernel serves.

All rules are functions of the numbers alone: the same measurements give the same catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from mirage_kernels.generator.tuning.catalog import Beyond, Bucket, Tried, has_producers

EQUAL = 1.01  # times that are closer than 1 % count as equal
CLOSE = 1.02  # times slower than the fastest, with a promise: perhaps faster without
FAR = 1.15  # times slower than another plan: no promise would make up for it
NOISE = 1.03  # between two runs of anything, by what `bench` shows


def fastest(tried: Sequence[Tried]) -> Tried | None:
    """Return the first, in the order of prediction, within 1 % of the fastest; None: all failed."""
    least = min((t.us for t in tried if t.us is not None), default=0.0)
    return next((t for t in tried if t.us is not None and t.us <= EQUAL * least), None)


def finalists(tried: Sequence[Tried]) -> list[Tried]:
    """Return the first and the fastest of every plan, if not far behind, and all that are close.

    In predicted order. They are measured once more, as calls are that promise nothing: plans gain
    differently from a promise. So do numbers of stages: with more of them weights come sooner where
    a launch may read them early, and keep other blocks waiting where it may not (LoRA, 8 tokens:
    8.8 us promised and 9.9 not, the rule's 9.0 and 9.6).
    """
    plans = dict.fromkeys(t.knobs.label for t in tried)
    best = [fastest([t for t in tried if t.knobs.label == plan]) for plan in plans]
    found = [t for t in (*tried[:1], *best) if t is not None]
    least = min((t.us for t in tried if t.us is not None), default=0.0)
    return [t for t in tried if t.us and t.us <= (FAR if t in found else CLOSE) * least]


def chosen(tried: Sequence[Tried]) -> Tried | None:
    """Return the finalist with the least mean of both times; the unpromised one counts twice.

    For nothing is promised unless somebody says more. Of equal means the first.
    """
    sums = {t: t.us + 2 * t.default_us for t in finalists(tried) if t.us and t.default_us}
    return min(sums, key=lambda t: sums[t], default=None) or fastest(tried)


def apart_or_not(tried: Mapping[int, Sequence[Tried]]) -> bool:
    """Return whether a kernel computes something apart: of all its variants, or of none.

    The faster, by the mean over the buckets of the fastest times' logarithms; the rule's where they
    are equal, and where the other has a bucket without a time.
    """
    rule = has_producers(next(iter(tried.values()))[0].knobs)
    means: dict[bool, float] = {}
    for apart in (rule, not rule):
        found = (fastest([t for t in b if has_producers(t.knobs) is apart]) for b in tried.values())
        times = [t.us for t in found if t is not None and t.us is not None]
        if len(times) == len(tried):
            means[apart] = sum(map(log, times)) / len(times)
    other = means.get(not rule)
    if other is None:
        return rule
    return rule is (rule in means and means[rule] <= other + log(EQUAL))


def behind(row: Bucket | Beyond) -> bool:
    """Say whether calls that promise nothing are slower than the library's program, or failed.

    Of a bucket, by more than noise; elsewhere at all, for the library runs its program there. Where
    that was not measured PyTorch eager stands for it.
    """
    noise = NOISE if isinstance(row, Bucket) else 1.0
    return row.default_us is None or row.default_us > noise * row.other_us


def most_tokens(buckets: Sequence[Bucket], beyond: Sequence[Beyond], *, any_number: bool) -> int:
    """Return the largest measured number of tokens up to which ours is not behind the library's.

    At least 1, the fewest that the table can say. A kernel that is nowhere behind and measured at
    numbers that stand for all (`any_number`) serves all: 0.
    """
    most = 1
    rows: list[Bucket | Beyond] = sorted([*buckets, *beyond], key=lambda row: row.tokens)
    for row in rows:
        if behind(row):
            return most
        most = row.tokens
    return 0 if any_number else most
