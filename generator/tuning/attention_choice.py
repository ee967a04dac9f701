"""What measurements decide of attention: the knobs of a bucket, what serves dense calls.

All rules are functions of the numbers alone: the same measurements give the same catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.schedules.attention.knobs import AttentionKnobs
from mirage_kernels.generator.schedules.attention.program import AttentionProgram
from mirage_kernels.generator.schedules.attention.variants import (
    FEW_TILES_ROWS,
    AttentionVariant,
    attention_variants,
)
from mirage_kernels.generator.target import Target
from mirage_kernels.generator.tuning.attention_catalog import (
    At,
    Chosen,
    TriedAttention,
    TriedForm,
    TunedAttention,
    TunedRows,
    geometric_mean,
)

EQUAL = 1.02  # means that are closer than 2 % count as equal: two runs differ by as much
DIGITS = 3
HINT = "measure again: mirage-kernels tune"


def chosen_of(
    workloads: Sequence[At],
    tried: Sequence[TriedAttention],
    rules: tuple[AttentionKnobs, AttentionKnobs | None],
) -> tuple[Chosen, ...]:
    """Return what serves a bucket's calls, and what those of few work tiles.

    `rules` are the rule's knobs for both. Whether work tiles are few is asked for small tiles, so
    that other calls' choice, if it has larger ones, is all that such a variant is compared with.
    """
    usual = chosen_knobs(workloads, tried, rules[0], few=False)
    rule = rules[1] or (usual.knobs if usual else rules[0])
    small = [t for t in tried if t.knobs.rows <= FEW_TILES_ROWS or t.knobs == rule]
    few = chosen_knobs(workloads, small, rule, few=True)
    return tuple(c for c in (usual, few) if c is not None)


def chosen_knobs(
    workloads: Sequence[At], tried: Sequence[TriedAttention], rule: AttentionKnobs, *, few: bool
) -> Chosen | None:
    """Return the first candidate, the rule's before all, within 2 % of the least mean.

    It is the geometric mean of times over floors, at the workloads that the launch finds to be of
    few work tiles, or at the others. None where there are none, or no candidate has all times.
    """
    own = [i for i, at in enumerate(workloads) if at.few_tiles is few]
    whole = [t for t in tried if not t.failed and len(t.us) == len(workloads)]
    if not own or not whole:
        return None

    def ratio(one: TriedAttention) -> float:
        means = one.means()
        return geometric_mean(tuple(means[i] / workloads[i].floor_us for i in own))

    ratios = [(ratio(t), t.knobs) for t in sorted(whole, key=lambda t: t.knobs != rule)]
    least = min(r for r, _ in ratios)
    best, knobs = next((r, k) for r, k in ratios if r <= EQUAL * least)
    rules = next((r for r, k in ratios if k == rule), None)
    known = None if rules is None else round(rules, DIGITS)
    return Chosen(knobs, few, round(best, DIGITS), known)


def chosen_form(forms: Sequence[TriedForm]) -> str:
    """Return the first muGraph, in the order of prediction, within 2 % of the fastest."""
    least = min((f.ratio for f in forms if f.ratio is not None), default=0.0)
    found = (f.form for f in forms if f.ratio is not None and f.ratio <= EQUAL * least)
    return next(found, forms[0].form)


def attention_variants_by(
    program: AttentionProgram, on: Target, tuned: TunedAttention | None
) -> tuple[AttentionVariant, ...]:
    """Return the kernel's variants: measured knobs where there are some, else the rule's.

    What was measured without the rule's knobs says nothing against them. Where calls of few
    work tiles have the knobs of others, one variant serves both, and buckets with the same knobs
    are one. Raises PlanError for measured knobs that do not fit any more.
    """
    made, known = attention_variants(program, on), tuned.buckets if tuned else ()
    chosen: list[list[AttentionVariant]] = []
    for bucket in sorted({v.bucket for v in made} | {b.rows for b in known}, key=_after):
        served = min((v.bucket for v in made if _after(v.bucket) >= _after(bucket)), key=_after)
        own = [replace(v, bucket=bucket) for v in made if v.bucket == served]
        measured = list(_measured(own, next((b for b in known if b.rows == bucket), None)))
        if chosen and [v.knobs for v in chosen[-1]] == [v.knobs for v in measured]:
            chosen.pop()
        chosen.append(measured)
    variants = tuple(v for bucket in chosen for v in bucket)
    _check_fit(program, on, variants)
    return variants


def _after(bucket: int) -> float:
    """Return the most rows that a bucket serves."""
    return bucket or inf


def _measured(own: list[AttentionVariant], found: TunedRows | None) -> Iterator[AttentionVariant]:
    """Yield the variants of a bucket, that for few work tiles first, if it has knobs of its own."""
    tried = [t.knobs for t in found.tried] if found else []
    if found is None or any(v.knobs not in tried for v in own):
        yield from own
        return
    rule = next(v for v in own if not v.few_tiles)
    usual, few = (found.choice(few=few) for few in (False, True))
    of_few = next((v.knobs for v in own if v.few_tiles), None)
    knobs = usual.knobs if usual else rule.knobs
    few_knobs = few.knobs if few else of_few
    if few_knobs is not None and few_knobs != knobs:
        yield AttentionVariant(rule.bucket, few_knobs, few_tiles=True)
    yield replace(rule, knobs=knobs)


def _check_fit(program: AttentionProgram, on: Target, variants: Iterable[AttentionVariant]) -> None:
    for v in variants:
        bytes_ = v.knobs.shared_bytes(*program.sizes)
        if bytes_ > on.shared_bytes:
            raise PlanError(
                f"{program.recipe}: the knobs that the catalog has for {v.name} need {bytes_} "
                f"bytes of shared memory, a block has {on.shared_bytes}",
                HINT,
            )
