"""Candidates of a kernel's knobs for one bucket of tokens, of every schedule that can serve it.

Each schedule has knobs of its own; the times that the latency model predicts for them are
comparable. What is measured is the rule's choice, the best of every other schedule, and then
whatever is predicted to be fastest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Json
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules import SCHEDULES
from mirage_kernels.generator.schedules.choose import buckets, variants
from mirage_kernels.generator.schedules.producer_blocks import WHERE_MEASURED
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.target import Target

STAGES_OF_EACH = 2  # numbers of stages tried of knobs that are alike otherwise
AFTER = 1.02  # times slower: what another number of stages counts as, so that others come first
# Of 146 buckets measured the choice was so 1.4 % slower than the best (geometric mean), at most
# 15 %; the rule's was 1.5 %, and at most 28 %.
MUCH = 1.15  # times faster
TOO_SLOW = 3.0  # times slower than the fastest by prediction: not worth a measurement
ROW_WISE_AT = 64  # tokens at which row-wise kernels are compared: one variant serves any number


@dataclass(frozen=True)
class Candidate:
    """Knobs and their predicted time; `rule` marks what is chosen without measurement."""

    knobs: Knobs
    predicted_us: float
    rule: bool = False


@dataclass(frozen=True)
class Wanted:
    """How many candidates there are beside the rule's choice, and what was chosen before."""

    top: int
    known: Knobs | None = None


def by_size(program: TileProgram, on: Target) -> dict[int, Variant]:
    """Return the rule's variants by the number of tokens at which their candidates are compared.

    Raises PlanError for a program that no block can hold.
    """
    chosen = variants(program, on)
    return (
        dict(zip(buckets(program, on), chosen, strict=False))
        if program.loop
        else {ROW_WISE_AT: chosen[0]}
    )


def candidates(
    programs: tuple[TileProgram, ...], tokens: int, on: Target, wanted: Wanted
) -> list[Candidate]:
    """Return what to measure for a bucket: the rule's choice, then others as predicted.

    Others are what was chosen before, and so many as wanted: the best of every other schedule
    before more of one. All fit a block, and all of sliced-K arrange shared memory as the rule's do,
    so that any of them can stand in one emitted file. Raises PlanError for a bucket that nothing
    fits.
    """
    rule = _rule(programs[0], tokens, on)
    ranked: list[Candidate] = []
    for program in programs:
        made = [c for c in all_candidates(program, tokens, on) if c.knobs != rule]
        ranked += _varied(made, wanted.known)
    least = min((c.predicted_us for c in ranked), default=0.0)
    ranked = sorted((c for c in ranked if c.predicted_us < TOO_SLOW * least), key=_order)
    first = Candidate(rule, predicted_us(programs[0], rule, tokens, on), rule=True)
    return [first, *sorted(_mixed(ranked, rule, wanted), key=_order)]


def untuned(program: TileProgram, on: Target) -> tuple[Variant, ...]:
    """Return one variant per bucket of a kernel that was never tuned.

    The rule's choice; the model's where that is predicted to be much faster and its numbers were
    measured.
    """
    if on.arch not in WHERE_MEASURED or not program.loop:
        return variants(program, on)

    def better(tokens: int, variant: Variant) -> Variant:
        best = min(all_candidates(program, tokens, on), key=_order, default=None)
        by_rule = predicted_us(program, variant.knobs, tokens, on)
        if best is None or best.predicted_us * MUCH > by_rule:
            return variant
        return replace(variant, knobs=best.knobs)

    return tuple(better(tokens, variant) for tokens, variant in by_size(program, on).items())


def _rule(program: TileProgram, tokens: int, on: Target) -> Knobs:
    """Return the rule's choice for a bucket."""
    named = buckets(program, on) if program.loop else (ROW_WISE_AT,)
    if tokens not in named:
        raise PlanError(f"there is no bucket of {tokens} tokens", f"buckets: {named}")
    chosen = by_size(program, on)
    if tokens not in chosen:
        raise PlanError(f"{program.recipe}: a block cannot hold {tokens} tokens of this kernel")
    return chosen[tokens].knobs


def predicted_us(program: TileProgram, knobs: Knobs, tokens: int, on: Target) -> float:
    """Return the predicted time of knobs for a full bucket of tokens."""
    return round(SCHEDULES[knobs.schedule].predict(program, on)(knobs, tokens), 3)


def all_candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[Candidate]:
    """Yield every choice of knobs of every schedule that fits a block."""
    for schedule in SCHEDULES.values():
        if not schedule.fits(program, on):
            predict = schedule.predict(program, on)
            for knobs in schedule.candidates(program, tokens, on):
                yield Candidate(knobs, round(predict(knobs, tokens), 3))


def _order(candidate: Candidate) -> tuple[float, tuple[int, ...]]:
    """Order by predicted time; equals by the preference of their schedule."""
    return candidate.predicted_us, candidate.knobs.preference


def _varied(made: list[Candidate], known: Knobs | None) -> Iterator[Candidate]:
    """Yield the first few of candidates that differ in their stages only, and what is known."""

    def alike(candidate: Candidate) -> str:
        return _alike(candidate.knobs)

    for _, group in groupby(sorted(made, key=lambda c: (alike(c), _order(c))), key=alike):
        for i, candidate in enumerate(group):
            if i < STAGES_OF_EACH or candidate.knobs == known:
                yield candidate


def _alike(knobs: Knobs) -> str:
    """Return the knobs without their stages and the barriers of a step."""

    def bare(data: dict[str, Json]) -> dict[str, Json]:
        kept = {name: v for name, v in data.items() if name not in ("stages", "barriers")}
        return {name: bare(v) if isinstance(v, dict) else v for name, v in kept.items()}

    return json.dumps(bare(knobs.to_json()))


def _mixed(ranked: Sequence[Candidate], rule: Knobs, wanted: Wanted) -> list[Candidate]:
    """Return so many of the ranked, in which the best of every other schedule comes first.

    What differs in its stages only from one before it, or from the rule's, comes later.
    """
    best = {c.knobs.label: c for c in reversed(ranked)}
    best.pop(rule.label, None)
    known = [c for c in ranked if c.knobs == wanted.known]
    others = sorted((c for c in best.values() if c not in known), key=_order)
    seen, later = {_alike(rule)}, []
    for candidate in (c for c in ranked if c not in (*known, *others)):
        again = _alike(candidate.knobs) in seen
        later.append((candidate.predicted_us * (AFTER if again else 1.0), candidate))
        seen.add(_alike(candidate.knobs))
    later.sort(key=lambda pair: (pair[0], _order(pair[1])))
    return [*known, *[*others, *(c for _, c in later)][: wanted.top]]
