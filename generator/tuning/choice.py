"""What measurements decide: the variant of a bucket, the most tokens that a kernel serves.

All rules are functions of the numbers alone: the same measurements give the same catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log

from mirage_kernels.generator.schedules.attention.variants import FEW_TILES_ROWS
from mirage_kernels.generator.tuning.catalog import At, Beyond, Bucket, Chosen, Tried, TriedGraph
from mirage_kernels.generator.tuning.knobs import Values, attention_knobs, has_producers

EQUAL = 1.01  # times that are closer than 1 % count as equal
EQUAL_MEANS = 1.02  # and means that are closer than 2 %: two runs differ by as much
CLOSE = 1.02  # times slower than the fastest, with flags: perhaps faster without
FAR = 1.15  # times slower than another schedule: no flag would make up for it
NOISE = 1.03  # between two runs of anything, by what `bench` shows
DIGITS = 3


def fastest(tried: Sequence[Tried]) -> Tried | None:
    """Return the first, in the order of prediction, within 1 % of the fastest; None: all failed."""
    timed = [(t.first_us, t) for t in tried if t.first_us is not None]
    least = min((us for us, _ in timed), default=0.0)
    return next((t for us, t in timed if us <= EQUAL * least), None)


def finalists(tried: Sequence[Tried]) -> list[Tried]:
    """Return the first and the fastest of every schedule, if not far behind, and all close ones.

    In predicted order. They are measured once more, without assumption flags: schedules gain
    differently from them. So do numbers of stages: with more of them weights come sooner where
    a launch may read them early, and keep other blocks waiting where it may not (LoRA, 8 tokens:
    8.8 us with flags and 9.9 without, the rule's 9.0 and 9.6).
    """
    schedules = dict.fromkeys(t.schedule for t in tried)
    best = [fastest([t for t in tried if t.schedule == name]) for name in schedules]
    found = [t for t in (*tried[:1], *best) if t is not None]
    least = min((t.first_us for t in tried if t.first_us is not None), default=0.0)
    return [t for t in tried if t.us and t.us[0] <= (FAR if t in found else CLOSE) * least]


def chosen(tried: Sequence[Tried]) -> Tried | None:
    """Return the finalist with the least mean of both times; that without flags counts twice.

    For nothing is assumed unless somebody says more. Of equal means the first.
    """
    timed = [t for t in finalists(tried) if t.us and t.default_us]
    return min(timed, key=lambda t: t.us[0] + 2 * t.default_us[0], default=fastest(tried))


def with_producers(tried: Mapping[int, Sequence[Tried]]) -> bool:
    """Return whether a kernel has blocks that compute an intermediate: all its variants, or none.

    The faster, by the mean over the buckets of the fastest times' logarithms; the rule's where they
    are equal, and where the other has a bucket without a time.
    """
    rule = has_producers(next(iter(tried.values()))[0].knobs)
    means: dict[bool, float] = {}
    for one in (rule, not rule):
        found = (fastest([t for t in b if has_producers(t.knobs) is one]) for b in tried.values())
        times = [t.us[0] for t in found if t is not None]
        if len(times) == len(tried):
            means[one] = sum(map(log, times)) / len(times)
    other = means.get(not rule)
    if other is None:
        return rule
    return rule is (rule in means and means[rule] <= other + log(EQUAL))


def behind_in(bucket: Bucket) -> bool:
    """Say whether calls without flags are slower than the library's program, or failed.

    By more than noise. Where that was not measured PyTorch eager stands for it.
    """
    (call,), ours = bucket.calls, bucket.best.default_us
    other = call.library_us or call.eager_us
    assert other is not None
    return not ours or ours[0] > NOISE * other


def behind(row: Beyond) -> bool:
    """Say whether ours is slower at all, for the library runs its program there, or failed."""
    return row.default_us is None or row.default_us > row.other_us


def most_tokens(buckets: Sequence[Bucket], beyond: Sequence[Beyond], *, any_number: bool) -> int:
    """Return the largest measured number of tokens up to which ours is not behind the library's.

    At least 1, the fewest that the table can say. A kernel that is nowhere behind and measured at
    numbers that stand for all (`any_number`) serves all: 0.
    """
    most = 1
    rows = [(b.size, behind_in(b)) for b in buckets]
    rows += [(b.sizes["tokens"], behind(b)) for b in beyond]
    for tokens, is_behind in sorted(rows, key=lambda row: row[0]):
        if is_behind:
            return most
        most = tokens
    return 0 if any_number else most


# -- buckets of several calls ----------------------------------------------------------------------


def chosen_of(
    calls: Sequence[At], tried: Sequence[Tried], rules: tuple[Values, Values]
) -> tuple[Chosen, ...]:
    """Return what serves a bucket's calls, and what those of few work tiles.

    `rules` are the rule's knobs for both. Whether tiles are few is asked for small ones, so that
    other calls' choice, if it has larger ones, is all that such a variant is compared with.
    """
    usual = chosen_knobs(calls, tried, rules[0], few=False)
    rule = rules[1] or (usual.knobs if usual else rules[0])
    small = [t for t in tried if attention_knobs(t.knobs).rows <= FEW_TILES_ROWS or t.knobs == rule]
    few = chosen_knobs(calls, small, rule, few=True)
    return tuple(c for c in (usual, few) if c is not None)


def chosen_knobs(
    calls: Sequence[At], tried: Sequence[Tried], rule: Values, *, few: bool
) -> Chosen | None:
    """Return the first candidate, the rule's before all, within 2 % of the least mean.

    It is the geometric mean of times over floors, at the calls that the launch finds to be of few
    work tiles, or at the others. None where there are none, or no candidate has all times.
    """
    own = [i for i, at in enumerate(calls) if at.few_tiles is few]
    whole = [t for t in tried if not t.failed and len(t.us) == len(calls)]
    if not own or not whole:
        return None

    def ratio(one: Tried) -> float:
        return geometric_mean([one.means[i] / calls[i].floor_us for i in own])

    ratios = [(ratio(t), t.knobs) for t in sorted(whole, key=lambda t: t.knobs != rule)]
    least = min(r for r, _ in ratios)
    best, knobs = next((r, k) for r, k in ratios if r <= EQUAL_MEANS * least)
    rules = next((r for r, k in ratios if k == rule), None)
    known = None if rules is None else round(rules, DIGITS)
    return Chosen(knobs, round(best, DIGITS), known, few)


def chosen_graph(graphs: Sequence[TriedGraph]) -> str:
    """Return the first muGraph, in the order of prediction, within 2 % of the fastest."""
    least = min((g.ratio for g in graphs if g.ratio is not None), default=0.0)
    found = (g.name for g in graphs if g.ratio is not None and g.ratio <= EQUAL_MEANS * least)
    return next(found, graphs[0].name)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))
