"""Start here: the whole flow as plain calls.

    recipe --trace--> spec --search--> candidates --verify--> proved muGraphs --rank, gate, plan-->
    the chosen one --prove--> record --emit--> files

`generate` is pure; `write` puts files in place, each whole or not at all; `check` makes sure that
everything committed is what the generator would make and still proves.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from mirage_kernels.generator.errors import PlanError, SearchError
from mirage_kernels.generator.frontend.references import require_reference
from mirage_kernels.generator.ir import Graph, retile
from mirage_kernels.generator.ir import check as check_graph
from mirage_kernels.generator.jobs.catalog import search_job
from mirage_kernels.generator.jobs.executors import Local
from mirage_kernels.generator.jobs.job import Job
from mirage_kernels.generator.jobs.run import Workshop, complete_all
from mirage_kernels.generator.jobs.store import Store
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram, roles_of
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.recipe import output_type, trace
from mirage_kernels.generator.records.attention import attention_cases, planned_attention, preferred
from mirage_kernels.generator.records.record import (
    About,
    AttentionRecord,
    KernelRecord,
    MuGraphRecord,
    Record,
    SearchSummary,
)
from mirage_kernels.generator.records.sources import files_of
from mirage_kernels.generator.report import Report, report_of
from mirage_kernels.generator.request import Event, Progress, Request
from mirage_kernels.generator.schedules.attention.lower import attention_program
from mirage_kernels.generator.schedules.attention.variants import attention_variants
from mirage_kernels.generator.schedules.choose import programs_of, variants
from mirage_kernels.generator.schedules.loop import ALIGNED_ELEMENTS
from mirage_kernels.generator.schedules.prologue import has_prologue
from mirage_kernels.generator.schedules.schedule import Variant
from mirage_kernels.generator.search.cases import Case, affordable, full_cases, small_cases
from mirage_kernels.generator.search.gate import Gate, Measured
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.problem import Limits
from mirage_kernels.generator.search.select import Ranked, Refusal, choose, rank
from mirage_kernels.generator.search.sketch import Found, from_json
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.superoptimizer import run_search
from mirage_kernels.generator.search.verify import Proof, prove
from mirage_kernels.generator.target import target
from mirage_kernels.generator.tuning.catalog import Key, tuned_kernel
from mirage_kernels.generator.tuning.variants import MAX_TOKENS, chosen_variants

SEED = 20260
LIMITS = Limits()

# What a launch has room for: the arrays of LaunchArgs, AttentionArgs and Kernel in csrc/launch.h.
LAUNCH_ROOM = {"tensors": 8, "scalars": 4, "results": 4, "dynamic dims": 4, "static dims": 4}
ATTENTION_ROOM = {"scalars": 8, "int32 scalars": 2, "inputs along the depth": 4}

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Result:
    """What was made: its record, its report, and its files by path below the kernels folder."""

    request: Request
    record: Record
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
    clock = Clock()
    on = target(request.arch)
    spec = trace(request.recipe, request.shape, request.dtype)
    require_reference(request.recipe, spec, request.dtype)
    with clock.stage("search"):
        found = searched(request, jobs=jobs, progress=progress, store=store)
    _require_some(found, request.recipe.name)
    with clock.stage("rank"):
        progress(Event("rank", 0, 0, f"{len(found.programs)} proved muGraphs"))
        ranked = rank(mugraphs(found, request, spec), spec, on)
    with clock.stage("choose"):
        choice = _choose(request, spec, preferred(ranked, _key(request), request.arch))
        line = choice.ranked.line().strip()
        progress(Event("choose", len(choice.refused) + 1, len(ranked), line))
    with clock.stage("plan"):
        record = _recorded(request, spec, choice, found)
    with clock.stage("prove"):
        record = prove_record(record, spec, progress)
    with clock.stage("emit"):
        files = files_of(record)
    return Result(request, record, report_of(found, ranked, choice.refused, clock.seconds), files)


def _require_some(found: Found, recipe: str) -> None:
    if found.programs:
        return
    cut = found.counts.pruned["budget"] > 0
    raise SearchError(
        f"the search found no muGraph equal to {recipe} "
        + (
            f"among the {found.counts.states:,} values of its budget"
            if cut
            else f"with at most {LIMITS.block_ops} block operators in {_kernels(LIMITS.kernels)}"
        ),
        "see docs/search.md for what is enumerated; a shorter program may do",
    )


def _kernels(number: int) -> str:
    return "1 kernel" if number == 1 else f"{number} kernels"


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


def searched(request: Request, *, jobs: int, progress: Progress, store: Store | None) -> Found:
    """Return every program within the limits that proves equal to the recipe at small sizes.

    Neither the search nor this proof depends on extents within a class or on storage types: one
    search serves a recipe's whole catalog. It is looked up in `store`, or made and kept there.
    """
    job = search_job(request.recipe, request.shape, LIMITS, arch=request.arch)
    if job.key not in _searched:
        _searched[job.key] = _search(job, jobs, progress, store)
    return _searched[job.key]


def _search(job: Job, jobs: int, progress: Progress, store: Store | None) -> Found:
    if store is None:

        def tell(stage: str, done: int, tasks: int) -> None:
            progress(Event(stage, done, tasks, f"{done} of {tasks} tasks"))

        return run_search(job.problem, jobs=jobs, progress=tell)
    shop = Workshop(store, Local(), jobs)
    (outcome,) = complete_all(
        [job], shop, lambda t: progress(Event("search", t.done, t.tasks, t.words))
    )
    if outcome.failure is not None:
        raise outcome.failure
    return from_json(outcome.found)


def mugraphs(found: Found, request: Request, spec: Graph) -> list[Graph]:
    """Return what a search found as muGraphs at a shape, exponentials made safe."""
    goal = Goal(spec, output_type(request.recipe, request.shape, request.dtype), request.dtype, {})
    return [stabilise(lower(program, goal), request.dtype) for program in found.programs]


class Plan(Enum):
    """How a muGraph becomes a kernel."""

    STREAM = "weights are streamed"
    ATTENTION = "keys are dealt out to the warps"


@dataclass(frozen=True)
class Choice:
    """The muGraph to take: its errors, those refused before it, its plan or why there is none."""

    ranked: Ranked
    accuracy: tuple[Measured, ...]
    refused: list[Refusal]
    plan: Plan | None
    no_plan: str = ""


def _choose(request: Request, spec: Graph, ranked: Sequence[Ranked]) -> Choice:
    """Return the fastest muGraph that is accurate and has a plan; without any plan, the fastest."""
    gate = Gate(spec, request.recipe, request.dtype)
    measured: dict[int, tuple[Measured, ...]] = {}
    plans: dict[int, Plan] = {}

    def accurate(graph: Graph) -> None:
        if id(graph) not in measured:
            measured[id(graph)] = gate.measure(graph)

    def plannable(graph: Graph) -> None:
        plans[id(graph)] = plan_for(request.recipe.name, with_threads(graph), request.arch)

    try:
        chosen, refused = choose(ranked, [plannable, accurate])
        return Choice(chosen, measured[id(chosen.graph)], refused, plans[id(chosen.graph)])
    except SearchError:
        chosen, refused = choose(ranked, [accurate])
    try:
        plannable(chosen.graph)
    except PlanError as error:
        return Choice(chosen, measured[id(chosen.graph)], refused, None, error.sentence)
    raise AssertionError("a muGraph that is accurate and has a plan was passed over")


def plan_for(recipe: str, graph: Graph, arch: str) -> Plan:
    """Return the plan that carries a muGraph.

    Raises PlanError where none does, with what the plan for its kind of muGraph lacks.
    """
    on = target(arch)
    try:
        variants(tile_program(recipe, graph, arch), on)
        _require_room(recipe, _carried(graph))
        return Plan.STREAM
    except PlanError as error:
        streaming = error
    try:
        program = attention_program(recipe, graph)
        attention_variants(program, on)
        names = {"scalars": program.scalars, "int32 scalars": program.integers}
        _require_room(recipe, {**names, "inputs along the depth": program.vectors}, ATTENTION_ROOM)
        return Plan.ATTENTION
    except PlanError as error:
        peaks = any(n.body is not None and n.body.of("peak") for n in graph.blocks)
        raise (error if peaks else streaming) from None


def _carried(graph: Graph) -> dict[str, Collection[str]]:
    """Return the names of what a launch of streamed weights carries."""
    types = {n.name: n.out.type for n in graph.inputs}
    dims = {d.name: d.dynamic for type_ in types.values() for d in type_.dims}
    return {
        "tensors": [name for name, type_ in types.items() if type_.dims],
        "scalars": [name for name, type_ in types.items() if not type_.dims],
        "results": graph.outputs,
        "dynamic dims": [d for d, dynamic in dims.items() if dynamic],
        "static dims": [d for d, dynamic in dims.items() if not dynamic],
    }


def _require_room(
    recipe: str, carried: Mapping[str, Collection[str]], room: Mapping[str, int] = LAUNCH_ROOM
) -> None:
    """Raise PlanError where there is more of something than a launch has room for."""
    for what, names in carried.items():
        if len(names) > room[what]:
            raise PlanError(f"{recipe}: a launch carries {room[what]} {what}, not {len(names)}")


def _key(request: Request) -> Key:
    """Return under which name the catalog has a kernel."""
    recipe, extents = request.recipe, request.shape.dims
    shape = {name: extents[name] for name in recipe.static_dims}
    return Key(recipe.name, request.dtype.value, shape)


def _recorded(request: Request, spec: Graph, choice: Choice, found: Found) -> Record:
    """Return the record of a chosen muGraph, not yet proved at its tiles."""
    recipe, key = request.recipe, _key(request)
    about = About(
        recipe=recipe.name,
        summary=recipe.summary,
        shape=key.shape,
        source=request.shape.source,
        dtype=request.dtype.value,
        arch=request.arch,
        search=SearchSummary(found.counts.states, found.counts.candidates, len(found.programs)),
        proof=Proof((), 0.0),
        accuracy=choice.accuracy,
    )
    graph = choice.ranked.graph
    if choice.plan is None:
        return MuGraphRecord(**vars(about), graph=graph, no_plan=choice.no_plan)
    graph = with_threads(graph)
    if choice.plan is Plan.ATTENTION:
        return planned_attention(about, graph)
    return replace(planned(about, graph), stacked=recipe.stacked)


def planned(about: About, graph: Graph) -> KernelRecord:
    """Return the record of a kernel with its variants: measured ones where it was tuned."""
    body = graph.blocks[0].body
    assert body is not None
    roles = roles_of(body)
    programs = programs_of(about.recipe, graph, about.arch)
    tuned = tuned_kernel(about.arch, Key(about.recipe, about.dtype, about.shape))
    chosen = chosen_variants(programs, target(about.arch), tuned)
    most_tokens = _most_tokens(programs[0], chosen)
    measured = {b.size for b in tuned.buckets} if tuned else set()
    largest = chosen[-1].knobs.tiles(roles)[roles.tokens]
    if tuned and (not has_prologue(programs[0], target(about.arch)) or largest in measured):
        most_tokens = tuned.max_tokens  # else it was measured before the plan for so many was there
    tiled = retile(graph, chosen[0].knobs.tiles(roles))
    return KernelRecord(
        **vars(about), roles=roles, variants=chosen, max_tokens=most_tokens, graph=tiled
    )


def _most_tokens(program: TileProgram, chosen: Sequence[Variant]) -> int:
    """Return up to how many tokens a kernel serves that was never measured (0: any number)."""
    if not program.loop:
        return 0
    most = chosen[-1].knobs.tiles(program.roles)[program.roles.tokens]
    return most if program.statistics or program.also else MAX_TOKENS


def proof_cases(record: Record) -> list[Case]:
    """Return what a muGraph is proved on: at full static extents and at small ones.

    A kernel is proved for the tiles of each of its variants: the full extents have an uneven number
    of tokens; the small ones have uneven edges everywhere, and no more than a single tile.
    """
    if isinstance(record, MuGraphRecord):
        return full_cases(record.graph)
    if isinstance(record, AttentionRecord):
        return attention_cases(record)
    if not record.roles.rows:
        return [case for variant in record.variants for case in line_cases(record, variant)]
    roles, cases = record.roles, []
    for variant in record.variants:
        tiles = record.tiles(variant)
        tokens = tiles[roles.tokens] + 3
        rows, depth = tiles[roles.rows], tiles[roles.depth]
        full = affordable(record.graph, {roles.tokens: tokens, **record.shape}, tiles)
        uneven = full | {roles.rows: 2 * rows + 5, roles.depth: 2 * depth + 8}
        single = full | {roles.tokens: 1, roles.rows: rows - 1, roles.depth: depth}
        cases += [Case(tiles, full), Case(tiles, uneven, bounded=True), Case(tiles, single)]
    return cases


def line_cases(record: KernelRecord, variant: Variant) -> list[Case]:
    """Return what a kernel of lines is proved on: full lines, short ones, and a single token."""
    roles, tiles = record.roles, record.tiles(variant)
    full = {roles.tokens: tiles[roles.tokens] + 2, **record.shape}
    few = {roles.tokens: 2, roles.depth: ALIGNED_ELEMENTS}
    return [
        Case(tiles, full),
        Case(tiles, full | few, bounded=True),
        Case(tiles, full | {roles.tokens: 1}),
    ]


def prove_record(record: R, spec: Graph, progress: Progress) -> R:
    """Return the record with the proof of its muGraph at its real tile sizes and extents."""
    check_graph(record.graph)
    cases = _announced([*_quick(record, spec), *proof_cases(record)], record, progress)
    return replace(record, proof=prove(spec, record.graph, cases, seed=SEED))


def _quick(record: Record, spec: Graph) -> list[Case]:
    """Return the small cases too where a muGraph has none: with exp only they have a bound."""
    return [] if isinstance(record, KernelRecord) else small_cases(spec)


def _announced(cases: Sequence[Case], record: Record, progress: Progress) -> Iterator[Case]:
    for done, case in enumerate(cases, start=1):
        progress(Event("prove", done, len(cases), f"{record.recipe} {record.stem}"))
        yield case
