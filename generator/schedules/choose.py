"""Which knobs serve a program: by rule for every bucket of tokens, and as candidates to measure.

Buckets of the dynamic dim are 8, 16, 32 and 64 tokens (the N side of the tensor-core instruction
comes in eights), and 128 where that was measured to be faster than the library; above the last the
grid's second axis covers the rest. By rule the first schedule that wants a bucket serves it.

Each schedule has knobs of its own; the times that the latency model predicts for them are
comparable. What is measured is the rule's choice, the best of every other schedule, and then
whatever is predicted to be fastest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules import RANKED
from mirage_kernels.generator.schedules.loop import ALIGNED_ELEMENTS, BUCKETS, MANY_TOKENS
from mirage_kernels.generator.schedules.producer_blocks import WHERE_MEASURED, with_producer_blocks
from mirage_kernels.generator.schedules.prologue import has_prologue
from mirage_kernels.generator.schedules.schedule import Knobs, Variant
from mirage_kernels.generator.schedules.sliced_k import BUCKETS_WITH_STATISTICS
from mirage_kernels.generator.target import Target, target

# A result beside the output that the loop computes, x + residual: every block reads both. Up to 16
# tokens that costs 0.1 to 1.1 us, a kernel for the sum in front 1.1 to 3.7; at 32 tokens it costs 3
# to 6 (docs/planning.md).
BUCKETS_WITH_RESULTS = (8, 16)
ANY_SIZE = 0  # the bucket of a variant that serves any number of tokens

STAGES_OF_EACH = 2  # numbers of stages tried of knobs that are alike otherwise
AFTER = 1.02  # times slower: what another number of stages counts as, so that others come first
# Of 146 buckets measured the choice was so 1.4 % slower than the best (geometric mean), at most
# 15 %; the rule's was 1.5 %, and at most 28 %.
MUCH = 1.15  # times faster
TOO_SLOW = 3.0  # times slower than the fastest by prediction: not worth a measurement


def programs_of(recipe: str, graph: Graph, arch: str) -> tuple[TileProgram, ...]:
    """Return the program that the rule takes, then the other one if there is one.

    Whether there are producer blocks concerns a whole emitted file, hence all variants of a kernel;
    all else is a matter of a variant's knobs. Raises PlanError for a muGraph without a plan.
    """
    plain = tile_program(recipe, graph, arch)
    made = plain if plain.columns else with_producer_blocks(plain, target(arch))
    return (made, plain) if made.producers else (plain,)


def member(programs: tuple[TileProgram, ...], *, producers: bool) -> TileProgram:
    """Return the program with producer blocks or without; the rule's if it is alone."""
    found = (p for p in programs if (p.producers is not None) is producers)
    return next(found, programs[0])


def shared_bytes(program: TileProgram, knobs: Knobs) -> int:
    """Return the shared memory that a block takes."""
    return RANKED[knobs.schedule].shared_bytes(program, knobs)


def registers(program: TileProgram, knobs: Knobs) -> int:
    """Return what a thread takes."""
    return RANKED[knobs.schedule].registers(program, knobs)


# -- by rule ---------------------------------------------------------------------------------------


def buckets(program: TileProgram, on: Target) -> tuple[int, ...]:
    """Return the numbers of tokens that a program has variants for."""
    if not program.loop:
        fitting = [s for s in RANKED.values() if not s.fits(program, on)]
        return tuple(sorted({size for s in fitting for size in s.buckets}))
    if program.also:
        return BUCKETS_WITH_RESULTS
    if program.columns:
        return BUCKETS[1:]  # a product takes 16 tokens
    if program.statistics and not has_prologue(program, on):
        return BUCKETS_WITH_STATISTICS
    return (*BUCKETS, MANY_TOKENS)


def _is_many(program: TileProgram, tokens: int) -> bool:
    """Say whether a bucket is that of many tokens, which few schedules serve."""
    return bool(program.loop) and tokens == MANY_TOKENS


def by_size(program: TileProgram, on: Target, *, many: bool = False) -> dict[int, Variant]:
    """Return one variant per bucket of tokens, by rule; the last takes any number of them.

    Buckets of more tokens than a block can hold are left away, and that of many tokens where it is
    not asked for. Raises PlanError for extents that the program's loads cannot take, and for one
    that keeps more than a block can hold in any case.
    """
    roles, extents = program.roles, program.extents
    aligned = ALIGNED_ELEMENTS * (2 if program.byte_rows else 1)
    if extents[roles.depth] % aligned:
        raise PlanError(
            f"{program.recipe}: rows of {extents[roles.depth]} elements are not 16-byte aligned",
            f"choose {roles.depth} as a multiple of {aligned}",
        )
    for dim in roles.inner:
        if extents[dim] % ALIGNED_ELEMENTS:
            raise PlanError(f"{program.recipe}: {dim} = {extents[dim]} is no multiple of 8")
    fitting = [schedule for schedule in RANKED.values() if not schedule.fits(program, on)]
    chosen: dict[int, Variant] = {}
    for bucket in buckets(program, on):
        if _is_many(program, bucket) and not many:
            break
        serving = [s for s in fitting if s.many or not _is_many(program, bucket)]
        try:
            found = (schedule.choose(program, bucket, on) for schedule in serving)
            knobs = next((k for k in found if k is not None), None)
        except PlanError:
            if not chosen:
                raise
            break
        if knobs is None:
            break
        chosen[bucket] = Variant(bucket, knobs)
    if not chosen:
        raise PlanError(
            f"{program.recipe}: no schedule keeps what a block of it needs",
            f"a shorter {roles.depth} may do",
        )
    last = max(chosen)
    return chosen | {last: replace(chosen[last], bucket=ANY_SIZE)}


def variants(program: TileProgram, on: Target) -> tuple[Variant, ...]:
    """Return the variants of `by_size`."""
    return tuple(by_size(program, on).values())


def untuned(program: TileProgram, on: Target) -> tuple[Variant, ...]:
    """Return one variant per bucket of a kernel that was never tuned.

    The rule's choice; the model's where that is predicted to be much faster and its numbers were
    measured.
    """
    chosen = by_size(program, on)
    if on.arch in WHERE_MEASURED and program.loop:
        for tokens, variant in chosen.items():
            best = fastest(all_candidates(program, tokens, on))
            by_rule = predicted_us(program, variant.knobs, tokens, on)
            if best is not None and best.predicted_us * MUCH <= by_rule:
                chosen[tokens] = replace(variant, knobs=best.knobs)
    return tuple(chosen.values())


def fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate that is predicted to be the fastest, None where there is none."""
    return min(candidates, key=_order, default=None)


# -- to be measured --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """Knobs and their predicted time; `rule` marks what is chosen without measurement."""

    knobs: Knobs
    predicted_us: float
    rule: bool = False

    @property
    def alike(self) -> str:
        """The knobs without their stages and the barriers of a step."""
        return re.sub(r"(stages|barriers)=\d+", "", repr(self.knobs))


def _order(candidate: Candidate) -> tuple[float, tuple[int, ...]]:
    """Order by predicted time; equals by the preference of their schedule."""
    return candidate.predicted_us, candidate.knobs.preference


@dataclass(frozen=True)
class Wanted:
    """How many candidates there are beside the rule's choice, and what was chosen before."""

    top: int
    known: Knobs | None = None


def candidates(
    programs: tuple[TileProgram, ...], tokens: int, on: Target, wanted: Wanted
) -> list[Candidate]:
    """Return what to measure for a bucket: the rule's choice, then others as predicted.

    Others are what was chosen before, and so many as wanted: the best of every other schedule
    before more of one, and what differs from one before it in its stages only later. All fit a
    block, and all of sliced-K arrange shared memory as the rule's do, so that any of them can stand
    in one emitted file. Raises PlanError for a bucket that nothing fits.
    """
    named, by_rule = buckets(programs[0], on), by_size(programs[0], on, many=True)
    if tokens not in named:
        raise PlanError(f"there is no bucket of {tokens} tokens", f"buckets: {named}")
    if tokens not in by_rule:
        name = programs[0].recipe
        raise PlanError(f"{name}: a block cannot hold {tokens} tokens of this kernel")
    knobs = by_rule[tokens].knobs
    rule = Candidate(knobs, predicted_us(programs[0], knobs, tokens, on), rule=True)
    made = ([c for c in all_candidates(p, tokens, on) if c.knobs != knobs] for p in programs)
    varied = list(chain.from_iterable(_varied(found, wanted.known) for found in made))
    least = min((c.predicted_us for c in varied), default=0.0)
    ranked = sorted((c for c in varied if c.predicted_us < TOO_SLOW * least), key=_order)
    best = {c.knobs.label: c for c in reversed(ranked)}
    best.pop(knobs.label, None)
    known = [c for c in ranked if c.knobs == wanted.known]
    others = sorted((c for c in best.values() if c not in known), key=_order)
    seen, later = {rule.alike}, []
    for candidate in (c for c in ranked if c not in (*known, *others)):
        counted = candidate.predicted_us * (AFTER if candidate.alike in seen else 1.0)
        later.append((counted, _order(candidate), candidate))
        seen.add(candidate.alike)
    others += [candidate for *_, candidate in sorted(later, key=lambda one: one[:2])]
    return [rule, *sorted([*known, *others[: wanted.top]], key=_order)]


def _varied(made: list[Candidate], known: Knobs | None) -> Iterator[Candidate]:
    """Yield the first few of candidates that differ in their stages only, and what is known."""
    ordered = sorted(made, key=lambda c: (c.alike, _order(c)))
    for _, group in groupby(ordered, key=lambda c: c.alike):
        for i, candidate in enumerate(group):
            if i < STAGES_OF_EACH or candidate.knobs == known:
                yield candidate


def predicted_us(program: TileProgram, knobs: Knobs, tokens: int, on: Target) -> float:
    """Return the predicted time of knobs for a full bucket of tokens."""
    return round(RANKED[knobs.schedule].predict(program, on)(knobs, tokens), 3)


def all_candidates(program: TileProgram, tokens: int, on: Target) -> Iterator[Candidate]:
    """Yield every choice of knobs of every schedule that fits a block."""
    for schedule in RANKED.values():
        serves = schedule.many or not _is_many(program, tokens)
        if serves and not schedule.fits(program, on):
            predict = schedule.predict(program, on)
            for knobs in schedule.candidates(program, tokens, on):
                yield Candidate(knobs, round(predict(knobs, tokens), 3))
