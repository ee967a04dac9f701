"""Start here: the whole flow as plain calls.

    recipe --trace--> spec --search--> candidates --verify--> proved muGraphs --rank, gate, plan-->
    the chosen one --prove--> record --emit--> files

`generate` is pure; `write` puts files in place, each whole or not at all; `check` makes sure that
everything committed is what the generator would make and still proves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.errors import SearchError, ShapeError, VerifyError
from mirage_kernels.generator.ir import DType, Graph, Json, retile
from mirage_kernels.generator.ir import check as check_graph
from mirage_kernels.generator.plan.lower import roles_of, tile_program
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.plan.variants import variants
from mirage_kernels.generator.recipe import Recipe, Shape, output_type, trace
from mirage_kernels.generator.record import KernelRecord, SearchSummary
from mirage_kernels.generator.search.gate import Gate, Measured
from mirage_kernels.generator.search.kernels import Counts, Limits, ProgramSketch, search
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.select import Ranked, Refusal, choose, rank
from mirage_kernels.generator.search.verify import Case, Proof, prove, small_cases
from mirage_kernels.generator.sources import sources_of
from mirage_kernels.generator.target import target

SEED = 20260
LIMITS = Limits()
ALTERNATIVES_SHOWN = 5


@dataclass(frozen=True)
class Event:
    """Something for a person to watch: a stage, how far it is, and one short line."""

    stage: str
    done: int
    total: int
    text: str


Progress = Callable[[Event], None]


@dataclass(frozen=True)
class Request:
    """One kernel to make: a recipe at a shape, in a storage type, for an architecture."""

    recipe: Recipe
    shape: Shape
    dtype: DType
    arch: str = "sm_90a"


@dataclass(frozen=True)
class Report:
    """What making one kernel took: counts of the search, refusals, seconds by stage."""

    states: int
    pruned: dict[str, int]
    candidates: int
    proved: int
    rejected: int
    gated: int
    seconds: dict[str, float]
    alternatives: tuple[str, ...]
    refused: tuple[Refusal, ...]

    def to_json(self) -> dict[str, Json]:
        """Return the report as JSON data."""
        data: dict[str, Json] = {
            "states": self.states,
            "pruned": {**self.pruned},
            "candidates": self.candidates,
            "proved": self.proved,
            "rejected": self.rejected,
            "gated": self.gated,
            "seconds": {k: round(v, 2) for k, v in self.seconds.items()},
            "alternatives": list(self.alternatives),
        }
        return data | {"refused": [f"{r.line}: {r.reason}" for r in self.refused]}


@dataclass(frozen=True)
class Result:
    """A made kernel: its record, its report, and its files by path below the kernels folder."""

    request: Request
    record: KernelRecord
    report: Report
    files: dict[str, str]


@dataclass
class Found:
    """What a search leaves for all shapes and types of a recipe: proved programs and counts."""

    programs: list[ProgramSketch]
    counts: Counts
    rejected: int
    seconds: dict[str, float] = field(default_factory=dict)


_searched: dict[tuple[object, ...], Found] = {}


def generate(request: Request, *, jobs: int, progress: Progress) -> Result:
    """Make one kernel, writing nothing.

    Raises RecipeError, ShapeError or TargetError for what cannot be read, SearchError when no
    equivalent muGraph can be emitted, PlanError when its kernel cannot be planned.
    """
    clock = Clock()
    on = target(request.arch)
    spec = trace(request.recipe, request.shape, request.dtype)
    found = search_and_verify(request, spec, jobs=jobs, progress=progress, clock=clock)
    _require_some(found, request.recipe.name)
    with clock.stage("rank"):
        progress(Event("rank", 0, 0, f"{len(found.programs)} proved muGraphs"))
        ranked = rank([lower(p, _goal(request, spec)) for p in found.programs], on)
    with clock.stage("choose"):
        chosen, accuracy, refused = _choose(request, spec, ranked)
        progress(Event("choose", len(refused) + 1, len(ranked), chosen.line().strip()))
    with clock.stage("plan"):
        graph = with_threads(chosen.graph)
        record = planned(request, graph, accuracy, found)
    with clock.stage("prove"):
        record = prove_record(record, spec, progress)
    with clock.stage("emit"):
        files = sources_of(record)
    report = _report(found, refused, ranked, chosen, found.seconds | clock.seconds)
    return Result(request, record, report, files)


def _require_some(found: Found, recipe: str) -> None:
    if found.programs:
        return
    cut = found.counts.pruned["budget"] > 0
    raise SearchError(
        f"the search found no muGraph equal to {recipe} "
        + (
            f"among the {found.counts.states:,} prefixes of its budget"
            if cut
            else f"with at most {LIMITS.block_ops} block operators in {LIMITS.kernels} kernels"
        ),
        "see the README for the programs that this version finds; a shorter program may do",
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


def search_and_verify(
    request: Request, spec: Graph, *, jobs: int, progress: Progress, clock: Clock
) -> Found:
    """Return every muGraph within the limits that proves equal to the spec at small sizes.

    Neither the search nor this proof depends on extents or storage types, so a recipe is searched
    once per process for all of them.
    """
    said = tuple((n.op, n.name, n.args, n.over, n.value, n.out.type.names) for n in spec.nodes)
    key = (LIMITS, said)
    if key in _searched:
        return _searched[key]
    with clock.stage("search"):
        sketches, counts = search(
            spec,
            LIMITS,
            jobs=jobs,
            progress=lambda done, tasks, c: progress(
                Event("search", done, tasks, f"{c.states} states, {c.candidates} candidates")
            ),
        )
    with clock.stage("verify"):
        proved = _verified(request, spec, sketches, progress)
    _searched[key] = Found(proved, counts, len(sketches) - len(proved), dict(clock.seconds))
    clock.seconds.clear()
    return _searched[key]


def _verified(
    request: Request, spec: Graph, sketches: Sequence[ProgramSketch], progress: Progress
) -> list[ProgramSketch]:
    cases, goal = small_cases(spec), _goal(request, spec)
    proved = []
    for done, sketch in enumerate(sketches, start=1):
        try:
            prove(spec, lower(sketch, goal), cases, seed=SEED)
            proved.append(sketch)
        except VerifyError:
            pass  # equal as abstract expressions only: counted as rejected
        progress(Event("verify", done, len(sketches), f"{len(proved)} proved"))
    return proved


def _goal(request: Request, spec: Graph) -> Goal:
    result = output_type(request.recipe, request.shape, request.dtype)
    return Goal(spec, result, request.dtype, small_cases(spec)[0].tiles)


def _choose(
    request: Request, spec: Graph, ranked: Sequence[Ranked]
) -> tuple[Ranked, tuple[Measured, ...], list[Refusal]]:
    gate = Gate(spec, request.recipe, request.dtype)
    measured: list[tuple[Measured, ...]] = []

    def accurate(graph: Graph) -> None:
        measured[:] = [gate.measure(graph)]

    def plannable(graph: Graph) -> None:
        variants(tile_program(request.recipe.name, with_threads(graph)), target(request.arch))

    chosen, refused = choose(ranked, [plannable, accurate])
    return chosen, measured[0], refused


def planned(
    request: Request, graph: Graph, accuracy: tuple[Measured, ...], found: Found
) -> KernelRecord:
    """Return the record of a chosen muGraph with its variants, not yet proved at their tiles."""
    body = graph.blocks[0].body
    assert body is not None
    roles, extents = roles_of(body), request.shape.dims
    program = tile_program(request.recipe.name, graph)
    chosen = variants(program, target(request.arch))
    return KernelRecord(
        recipe=request.recipe.name,
        summary=request.recipe.summary,
        shape={name: extents[name] for name in request.recipe.static_dims},
        source=request.shape.source,
        dtype=request.dtype.value,
        arch=request.arch,
        roles=roles,
        variants=chosen,
        search=SearchSummary(found.counts.states, found.counts.candidates, len(found.programs)),
        proof=Proof((), 0.0),
        accuracy=accuracy,
        graph=retile(graph, chosen[0].tiles(roles.rows, roles.tokens, roles.depth)),
    )


def proof_cases(record: KernelRecord) -> list[Case]:
    """Return what a kernel is proved on: each variant's tiles, at full extents and at two small.

    The full extents have an uneven number of tokens; the small ones have uneven edges everywhere,
    and no more than a single tile.
    """
    roles, cases = record.roles, []
    for variant in record.variants:
        tiles, tokens = record.tiles(variant), variant.knobs.tokens + 3
        rows, depth = tiles[roles.rows], tiles[roles.depth]
        full = {roles.tokens: tokens, **record.shape}
        uneven = full | {roles.rows: 2 * rows + 5, roles.depth: 2 * depth + 8}
        single = full | {roles.tokens: 1, roles.rows: rows - 1, roles.depth: depth}
        cases += [Case(tiles, sizes) for sizes in (full, uneven, single)]
    return cases


def prove_record(record: KernelRecord, spec: Graph, progress: Progress) -> KernelRecord:
    """Return the record with the proof of its muGraph at its real tile sizes and extents."""
    check_graph(record.graph)
    cases = _announced(proof_cases(record), record, progress)
    return replace(record, proof=prove(spec, record.graph, cases, seed=SEED))


def _announced(cases: Sequence[Case], record: KernelRecord, progress: Progress) -> Iterator[Case]:
    for done, case in enumerate(cases, start=1):
        progress(Event("prove", done, len(cases), f"{record.recipe} {record.stem}"))
        yield case


def _report(
    found: Found,
    refused: Sequence[Refusal],
    ranked: Sequence[Ranked],
    chosen: Ranked,
    seconds: Mapping[str, float],
) -> Report:
    others = [r.line() for r in ranked if r is not chosen][:ALTERNATIVES_SHOWN]
    return Report(
        states=found.counts.states,
        pruned=dict(sorted(found.counts.pruned.items())),
        candidates=found.counts.candidates,
        proved=len(found.programs),
        rejected=found.rejected,
        gated=sum("error" in r.reason for r in refused),
        seconds=dict(seconds),
        alternatives=tuple(others),
        refused=tuple(refused),
    )


def requests(
    recipe: Recipe, arch: str, dtypes: Sequence[DType] | None, shapes: Sequence[Shape] | None
) -> list[Request]:
    """Return what to make: every shape of the catalog in every type, unless some are named."""
    target(arch)
    return [
        Request(recipe, shape, dtype, arch)
        for shape in (shapes or recipe.shapes)
        for dtype in (dtypes or recipe.dtypes)
    ]


def parse_shape(text: str, recipe: Recipe) -> Shape:
    """Read `K=4096,N=6144`; raises ShapeError saying what does not fit.

    A shape of the catalog keeps the catalog's name for it.
    """
    dims: dict[str, int] = {}
    for item in text.split(","):
        name, equals, size = item.partition("=")
        if not equals or not size.strip().isdecimal():
            raise ShapeError(
                f"{item!r} in the shape {text!r} is not of the form NAME=NUMBER",
                f"write --shape {','.join(f'{n}=...' for n in recipe.static_dims)}",
            )
        if name.strip() in dims:
            raise ShapeError(f"the shape {text!r} gives {name.strip()} twice")
        dims[name.strip()] = int(size)
    named = Shape("given on the command line", dims)
    recipe.dims(named)
    ordered = {name: dims[name] for name in recipe.static_dims}
    known = (s for s in recipe.shapes if dict(s.dims) == ordered)
    return next(known, Shape(named.source, ordered))
