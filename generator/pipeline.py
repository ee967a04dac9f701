"""Start here: the whole flow as plain calls.

    recipe --trace--> spec --search--> candidates --verify--> proved muGraphs --rank, gate, plan-->
    the chosen one --prove--> record --emit--> files

`generate` is pure; `write` puts files in place, each whole or not at all; `check` makes sure that
everything committed is what the generator would make and still proves.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from mirage_kernels.generator.errors import PlanError, SearchError
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.ir import check as check_graph
from mirage_kernels.generator.jobs.run import Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import Recipe, output_type, trace
from mirage_kernels.generator.records.record import About, KernelRecord, Plan, SearchSummary
from mirage_kernels.generator.records.sources import (
    FAST,
    GENERAL,
    PLANS,
    files_of,
    form_of,
    plan_for,
    plan_of,
)
from mirage_kernels.generator.report import Report, report_of
from mirage_kernels.generator.request import Event, Progress, Request
from mirage_kernels.generator.schedules.general.choice import general_first
from mirage_kernels.generator.schedules.general.reduction_kernels import with_reduction_kernels
from mirage_kernels.generator.schedules.schedule import Subject, Variant
from mirage_kernels.generator.search.cases import Case, full_cases, small_cases
from mirage_kernels.generator.search.gate import Gate, Measured
from mirage_kernels.generator.search.independent import independent_specs, united
from mirage_kernels.generator.search.lower import Goal
from mirage_kernels.generator.search.select import (
    Candidates,
    Ranked,
    Refusal,
    choose,
    mugraphs,
    rank,
)
from mirage_kernels.generator.search.sketch import Found, Limits, counts_of
from mirage_kernels.generator.search.superoptimizer import goal_of as whole_goal
from mirage_kernels.generator.search.superoptimizer import run_search, search_job
from mirage_kernels.generator.search.verify import Proof, prove
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Key, tuned_kernel, tuned_program

SEED = 20260
LIMITS = Limits()


@dataclass(frozen=True)
class Result:
    """What was made: its record, its report, and its files by path below the kernels folder."""

    request: Request
    record: KernelRecord
    report: Report
    files: dict[str, str]


_searched: dict[str, Found] = {}


def generate(
    request: Request, *, jobs: int, progress: Progress, store: Store | None = None
) -> Result:
    """Make one kernel, writing nothing but the search's outcome into `store`.

    A muGraph for which there is no plan yet is a result too, without sources. Raises RecipeError,
    ShapeError or TargetError for what cannot be read, SearchError when there is no equivalent
    muGraph that is accurate.
    """
    made = _generated(request, jobs=jobs, progress=progress, store=store)
    apart = request.recipe.apart
    if apart is None or not made.record.no_plan:
        return made
    request = replace(request, recipe=apart, shape=apart.shapes[0])
    return _generated(request, jobs=jobs, progress=progress, store=store)


def _generated(request: Request, *, jobs: int, progress: Progress, store: Store | None) -> Result:
    clock = Clock()
    on = target(request.arch)
    spec = trace(request.recipe, request.shape, request.dtype)
    require_reference(request.recipe, spec, request.dtype)
    specs = independent_specs(spec, request.recipe.independent)
    with clock.stage("search"):
        found = [
            searched(request, jobs=jobs, progress=progress, store=store, program=i)
            for i in range(len(specs))
        ]
    for nothing in (one for one in found if not one.programs):
        raise _nothing_found(nothing, request.recipe.name)
    with clock.stage("rank"):
        proved = sum(len(one.programs) for one in found)
        progress(Event("rank", 0, 0, f"{proved} proved muGraphs"))
        graphs = [
            mugraphs(one.programs, goal_of(request, own))
            for one, own in zip(found, specs, strict=True)
        ]
        ranked = [rank(each, own, on) for each, own in zip(graphs, specs, strict=True)]
        choice = ranked[0] if len(specs) == 1 else [_united(request, spec, ranked)]
    gate = Gate(spec, request.recipe, request.dtype)
    candidates = Candidates(gate, choice, counts_of(found), proved)
    return result_of(request, candidates, clock=clock, progress=progress)


def _united(request: Request, spec: Graph, ranked: Sequence[Sequence[Ranked]]) -> Ranked:
    """Return the muGraph of independent programs: of each the one that general kernels run best.

    Raises SearchError where a program takes several kernels.
    """
    on = target(request.arch)
    first = [general_first(own, lambda one: one.graph, on)[0] for own in ranked]
    longest = max((one.estimate for one in first), key=lambda estimate: estimate.microseconds)
    return Ranked(united(spec, [one.graph for one in first]), longest, 0)


def result_of(
    request: Request, candidates: Candidates, *, clock: Clock, progress: Progress
) -> Result:
    """Make the kernel of the fastest of proved muGraphs that is accurate and has a plan.

    Raises SearchError where none is accurate, VerifyError where it does not prove at its tiles.
    """
    with clock.stage("choose"):
        choice = _choose(request, candidates)
        line = choice.ranked.line().strip()
        progress(Event("choose", len(choice.refused) + 1, len(candidates.ranked), line))
    with clock.stage("plan"):
        record = _recorded(request, choice, candidates)
    with clock.stage("prove"):
        record = prove_record(record, candidates.gate.spec, progress)
    with clock.stage("emit"):
        files = files_of(record)
    return Result(request, record, report_of(candidates, choice.refused, clock.seconds), files)


def _nothing_found(found: Found, recipe: str) -> SearchError:
    if found.counts.pruned.get("budget", 0) > 0:
        where = f"among the {found.counts.states:,} values of its budget"
    else:
        kernels = f"{LIMITS.kernels} kernel{'s' if LIMITS.kernels > 1 else ''}"
        where = f"with at most {LIMITS.block_ops} block operators in {kernels}"
    return SearchError(
        f"the search found no muGraph equal to {recipe} {where}",
        "see docs/search.md for what is enumerated; a shorter program may do",
    )


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def searched(
    request: Request,
    *,
    jobs: int,
    progress: Progress,
    store: Store | None,
    program: int = 0,
) -> Found:
    """Return every program within the limits that proves equal to the recipe at small sizes.

    Neither the search nor this proof depends on extents within a class or on storage types: one
    search serves a recipe's whole catalog. It is looked up in `store`, or made and kept there. Of
    several independent programs it is that of one.
    """
    job = search_job(request.recipe, request.shape, LIMITS, arch=request.arch, program=program)

    if job.key in _searched:
        return _searched[job.key]
    if store is None:
        _searched[job.key] = run_search(job, jobs=jobs, progress=progress)
    else:
        shop = Workshop(store, processes=jobs)
        made = complete_all([job], shop, lambda event: progress(replace(event, stage="search")))
        if made[0].failure is not None:
            raise made[0].failure
        _searched[job.key] = made[0].found
    return _searched[job.key]


def goal_of(request: Request, spec: Graph) -> Goal:
    """Return what a search's programs are lowered for at a shape."""
    if request.recipe.independent:  # of one of the programs, of which all store the same type
        return whole_goal(spec, request.dtype)
    result = output_type(request.recipe, request.shape, request.dtype)
    return Goal(spec, result, request.dtype, {}, request.recipe.stores)


@dataclass(frozen=True)
class Choice:
    """The muGraph to take: its errors, those refused before it, its plan or why there is none."""

    ranked: Ranked
    accuracy: tuple[Measured, ...]
    refused: list[Refusal]
    plan: Plan | None
    no_plan: str = ""


def _choose(request: Request, candidates: Candidates) -> Choice:
    """Return the fastest muGraph that is accurate and has a plan; without any plan, the fastest.

    The one that was measured to be the fastest comes first, if one was.
    """
    gate, ranked = candidates.gate, candidates.ranked
    tuned = tuned_program(request.arch, _key(request), request.catalogs)
    tuned = tuned or tuned_kernel(request.arch, _key(request), of_any_type=True)
    if tuned is not None and len(tuned.forms) > 1:
        form = tuned.form
        ranked = sorted(ranked, key=lambda one: form_of(_subject(request, one.graph)) != form)
    measured: dict[int, tuple[Measured, ...]] = {}
    plans: dict[int, Plan] = {}

    def accurate(graph: Graph) -> None:
        if id(graph) not in measured:
            measured[id(graph)] = gate.measure(graph)

    def plannable(among: Sequence[Plan]) -> Callable[[Graph], object]:
        def plan(graph: Graph) -> None:
            plans[id(graph)] = plan_for(_subject(request, graph), among)

        return plan

    on = target(request.arch)
    serving = _serving(request.recipe)
    for among in serving:
        tests = [plannable(among), accurate]  # what is refused sooner comes first
        if among is not FAST:
            ranked = general_first(ranked, lambda one: one.graph, on)
            tests = [accurate, partial(_measure_apart, gate), plannable(among)]
        try:
            chosen, refused = choose(ranked, tests)
            return Choice(chosen, measured[id(chosen.graph)], refused, plans[id(chosen.graph)])
        except SearchError:
            continue
    chosen, refused = choose(ranked, [accurate])
    try:
        plan_for(_subject(request, chosen.graph), serving[-1])
    except PlanError as error:
        return Choice(chosen, measured[id(chosen.graph)], refused, None, error.sentence)
    raise AssertionError("a muGraph that is accurate and has a plan was passed over")


def _serving(recipe: Recipe) -> Sequence[Sequence[Plan]]:
    """Return the plans that may carry a recipe, in turn.

    A fast schedule of a slower muGraph comes before a general one, unless it would need copies.
    """
    if recipe.strided:
        return (GENERAL,)
    return (FAST,) if recipe.grouped else (FAST, PLANS)


def _measure_apart(gate: Gate, graph: Graph) -> None:
    """Raise what the gate says of a muGraph's form whose sums another kernel joins."""
    if (other := with_reduction_kernels(graph, gate.dtype)) is not None:
        gate.measure(other)


def _subject(request: Request, graph: Graph) -> Subject:
    return Subject(request.recipe.name, with_threads(graph), target(request.arch))


def _key(request: Request) -> Key:
    """Return under which name the catalog has a kernel."""
    recipe, extents = request.recipe, request.shape.dims
    shape = {name: extents[name] for name in recipe.static_dims}
    return Key(recipe.name, request.dtype.value, shape)


def _recorded(request: Request, choice: Choice, candidates: Candidates) -> KernelRecord:
    """Return the record of a chosen muGraph, not yet proved at its tiles."""
    recipe, key, counts = request.recipe, _key(request), candidates.counts
    about = About(
        recipe=recipe.name,
        summary=recipe.summary,
        shape=key.shape,
        source=request.shape.source,
        dtype=request.dtype.value,
        arch=request.arch,
        search=SearchSummary(counts.states, counts.candidates, candidates.proved),
        proof=Proof((), 0.0),
        accuracy=choice.accuracy,
        indexed=recipe.indexed,
        row_parts=recipe.row_parts,
    )
    graph = choice.ranked.graph
    if choice.plan is None:
        return KernelRecord(**vars(about), graph=graph, no_plan=choice.no_plan)
    made = choice.plan.record(about, with_threads(graph), request.catalogs)
    return replace(made, stacked=recipe.stacked, strided=recipe.strided, broadcast=recipe.broadcast)


def graphs_of(record: KernelRecord) -> dict[Graph, list[Variant]]:
    """Return a record's own muGraph and other forms of it that kernels compute, by variants."""
    found = dict[Graph, list[Variant]]({record.graph: []})
    for variant in record.variants:
        found.setdefault(plan_of(record).mugraph(record, variant), []).append(variant)
    return found


def proved_graphs(record: KernelRecord) -> dict[Graph, list[Case]]:
    """Return the muGraphs of a record, each with what it is proved on at its variants' tiles.

    Variants that differ in other knobs than tiles share their cases.
    """
    if record.no_plan:
        return {record.graph: full_cases(record.graph)}
    plan, found = plan_of(record), dict[Graph, list[Case]]()
    for graph, variants in graphs_of(record).items():
        cases = found.setdefault(graph, [])
        for case in (c for variant in variants for c in plan.cases(record, variant)):
            if case not in cases:
                cases.append(case)
    return found


def prove_record(record: KernelRecord, spec: Graph, progress: Progress) -> KernelRecord:
    """Return the record with the proof of its muGraphs at their real tile sizes and extents.

    Where a muGraph has no small cases of its own they come first: with exp only they have a bound.
    """
    check_graph(record.graph)
    small = small_cases(spec) if record.no_plan or plan_of(record).proves_small else []
    graphs = {graph: [*small, *cases] for graph, cases in proved_graphs(record).items()}
    count, numbers = sum(map(len, graphs.values())), itertools.count(1)

    def announced(cases: Sequence[Case]) -> Iterator[Case]:
        for case in cases:
            progress(Event("prove", next(numbers), count, f"{record.recipe} {record.stem}"))
            yield case

    proofs = [prove(spec, g, announced(cases), seed=SEED) for g, cases in graphs.items()]
    return replace(record, proof=Proof.of([c for proof in proofs for c in proof.cases]))
