"""What measurements decide: the knobs of a bucket, the most tokens that a kernel serves, a muGraph.

All rules are functions of the numbers alone: the same measurements give the same catalog. They
differ in how calls with and without assumptions are weighted. Where a bucket has one point, many
candidates are measured with assumptions and the best of them without, which then count twice; where
it has several, all candidates are measured both ways, which count alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log
from statistics import geometric_mean

from mirage_kernels.generator.schedules.attention.variants import FEW_TILES_ROWS
from mirage_kernels.generator.schedules.loop import MANY_TOKENS, producers_of
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.tuning.catalog import (
    Beyond,
    Bucket,
    Catalog,
    Chosen,
    Dense,
    Point,
    Tried,
    TriedForm,
)

EQUAL = 1.01  # times that are closer than 1 % count as equal
EQUAL_MEANS = 1.02  # means over several points that are closer than 2 %: two runs differ by as much
CLOSE = 1.02  # times slower than the fastest, with assumptions: perhaps faster without
FAR = 1.15  # times slower than another schedule: no assumption would make up for it
NOISE = 1.03  # between two runs of anything, by what `bench` shows
DIGITS = 3
NEVER = 1 << 30  # query tokens


# -- buckets with one point ------------------------------------------------------------------------


def fastest(tried: Iterable[Tried]) -> Tried | None:
    """Return the first, in the order of prediction, within 1 % of the fastest; None: all failed."""
    timed = [t for t in tried if t.assumed_us]
    least = min((t.assumed_us[0] for t in timed), default=0.0)
    return next((t for t in timed if t.assumed_us[0] <= EQUAL * least), None)


def finalists(tried: Sequence[Tried]) -> list[Tried]:
    """Return the first and the fastest of each schedule, if not far behind, and all that are close.

    In predicted order. They are measured once more, as calls are that assume nothing: schedules
    gain differently from an assumption. So do numbers of stages: with more of them weights come
    sooner where a launch may read them early, and keep other blocks waiting where it may not (LoRA,
    8 tokens: 8.8 us with and 9.9 without, the rule's 9.0 and 9.6).
    """
    labels = dict.fromkeys(t.knobs.label for t in tried)
    best = [fastest(t for t in tried if t.knobs.label == label) for label in labels]
    timed = [t for t in tried if t.assumed_us]
    least = min((t.assumed_us[0] for t in timed), default=0.0)
    kept = [*tried[:1], *best]
    return [t for t in timed if t.assumed_us[0] <= (FAR if t in kept else CLOSE) * least]


def chosen(tried: Sequence[Tried]) -> Tried | None:
    """Return the finalist with the least mean of both times; that without assumptions counts twice.

    For nothing is assumed unless somebody says more. Of equal means the first.
    """
    whole = [t for t in finalists(tried) if t.us]
    best = min(whole, key=lambda t: t.assumed_us[0] + 2 * t.us[0], default=None)
    return best or fastest(tried)


def has_producers(knobs: Knobs) -> bool:
    """Say whether producer blocks compute something for all other blocks."""
    return producers_of(knobs) is not None


def with_producers(tried: Mapping[int, Sequence[Tried]]) -> bool:
    """Return whether a kernel has producer blocks: in all its variants, or in none.

    The faster, by the mean over the buckets of the fastest times' logarithms; the rule's where they
    are equal, and where the other has a bucket without a time.
    """
    rule = has_producers(next(iter(tried.values()))[0].knobs)
    means: dict[bool, float] = {}
    for with_ in (rule, not rule):
        found = (fastest(t for t in b if has_producers(t.knobs) is with_) for b in tried.values())
        times = [t.assumed_us[0] for t in found if t is not None]
        if len(times) == len(tried):
            means[with_] = sum(map(log, times)) / len(times)
    other = means.get(not rule)
    if other is None:
        return rule
    return rule is (rule in means and means[rule] <= other + log(EQUAL))


def behind(row: Beyond, *, noise: float = 1.0) -> bool:
    """Say whether calls that assume nothing are slower than the library's program, or failed.

    Of a bucket, by more than noise; of that of many tokens and elsewhere at all, for the library
    runs its program there. Where that was not measured PyTorch eager stands for it.
    """
    return row.us is None or row.us > noise * (row.library_us or row.eager_us)


def most_tokens(buckets: Sequence[Bucket], beyond: Sequence[Beyond], *, any_number: bool) -> int:
    """Return the largest measured number of tokens up to which ours is not behind the library's.

    At least 1, the fewest that the table can say. A kernel that is nowhere behind and measured at
    numbers that stand for all (`any_number`) serves all: 0.
    """
    rows = [(row, 1.0) for row in beyond]
    for bucket in buckets:
        us, (point,) = bucket.best.us if bucket.best else (), bucket.points
        others = (point.eager_us or 0.0, point.library_us)
        noise = 1.0 if bucket.size == MANY_TOKENS else NOISE
        rows.append((Beyond(bucket.size, us[0] if us else None, *others), noise))
    most = 1
    for row, noise in sorted(rows, key=lambda pair: pair[0].tokens):
        if behind(row, noise=noise):
            return most
        most = row.tokens
    return 0 if any_number else most


# -- buckets with several points -------------------------------------------------------------------


def chosen_of(
    points: Sequence[Point], tried: Sequence[Tried], rules: tuple[Knobs, Knobs | None]
) -> tuple[Chosen, ...]:
    """Return what serves a bucket's calls, and what those of few work tiles.

    `rules` are the rule's knobs for both. Whether work tiles are few is asked for small tiles, so
    that other calls' choice, if it has larger ones, is all that such a variant is compared with.
    """
    usual = chosen_knobs(points, tried, rules[0], few=False)
    rule = rules[1] or (usual.knobs if usual else rules[0])
    small = [t for t in tried if getattr(t.knobs, "rows", 0) <= FEW_TILES_ROWS or t.knobs == rule]
    few = chosen_knobs(points, small, rule, few=True)
    return tuple(c for c in (usual, few) if c is not None)


def chosen_knobs(
    points: Sequence[Point], tried: Sequence[Tried], rule: Knobs, *, few: bool
) -> Chosen | None:
    """Return the first candidate, the rule's before all, within 2 % of the least mean.

    It is the geometric mean of times over floors, at the points that the launch finds to be of few
    work tiles, or at the others. None where there are none, or no candidate has all times.
    """
    own = [i for i, point in enumerate(points) if point.few_tiles is few]
    whole = [t for t in tried if not t.failed and len(t.us) == len(points)]
    if not own or not whole:
        return None
    ratios = {
        t.knobs: geometric_mean([t.means()[i] / points[i].floor_us for i in own])
        for t in sorted(whole, key=lambda t: t.knobs != rule)
    }
    least = min(ratios.values())
    knobs = next(knobs for knobs, ratio in ratios.items() if ratio <= EQUAL_MEANS * least)
    of_rule = round(ratios[rule], DIGITS) if rule in ratios else None
    return Chosen(knobs, round(ratios[knobs], DIGITS), of_rule, few)


def chosen_form(forms: Sequence[TriedForm]) -> str:
    """Return the first muGraph, in the order of prediction, within 2 % of the fastest."""
    least = min((f.ratio for f in forms if f.ratio is not None), default=0.0)
    found = (f.form for f in forms if f.ratio is not None and f.ratio <= EQUAL_MEANS * least)
    return next(found, forms[0].form)


# -- dense calls of many query tokens: our kernel, or PyTorch's attention --------------------------


@dataclass(frozen=True)
class Prefill:
    """From where on PyTorch's attention serves: query tokens of a sequence, and query lines."""

    tokens: int
    lines: int

    def serves(self, call: Dense) -> bool:
        """Say whether PyTorch's attention serves a call."""
        return call.tokens >= self.tokens and call.lines >= self.lines


def prefill_from(dense: Sequence[Dense]) -> Prefill | None:
    """Return the rule that loses least against the faster one of both at every call.

    The sum of logarithms counts small calls as large ones; of equal rules that for the most tokens
    and lines. None where nothing was measured.
    """
    tokens = sorted({d.tokens for d in dense}, reverse=True)
    lines = sorted({d.lines for d in dense}, reverse=True)
    rules = [Prefill(*pair) for pair in product(tokens, lines)]

    def lost(rule: Prefill) -> float:
        taken = ((d.sdpa_us if rule.serves(d) else d.us) / min(d.us, d.sdpa_us) for d in dense)
        return round(sum(map(log, taken)), 9)

    return min([*rules, Prefill(NEVER, 0)], key=lost) if dense else None


def prefill_rules(catalog: Catalog, arch: str) -> dict[tuple[str, int], Prefill | None]:
    """Return the rules of kernels/prefill.py that the catalog gives.

    By kind of call (see `kind_of`) and by the length of a head.
    """
    from mirage_kernels.prefill import kind_of

    points: dict[tuple[str, int], list[Dense]] = {}
    for kernel in catalog.of(arch):
        for call in kernel.dense:
            kind = kind_of(call.tokens, call.keys, causal=call.causal)
            points.setdefault((kind, kernel.key.shape["D"]), []).append(call)
    return {at: prefill_from(points[at]) for at in sorted(points)}
