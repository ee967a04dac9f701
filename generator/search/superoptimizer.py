"""The superoptimizer as one call, and as a job: a spec in, proved programs out.

    spec --search--> programs, cheapest first --verify--> those that prove equal at small sizes

The search sees classes of extents, not extents: static dims that are longer than a tile, and those
that are not. So one search serves every shape of a class and every storage type. Programs with exp
are made safe (`search/stabilise.py`) before they are proved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mirage_kernels.generator.errors import MirageError, SearchError
from mirage_kernels.generator.ir import Dim, DType, Graph, Json, TensorType, Value, parts_of
from mirage_kernels.generator.ir.dtypes import STORAGE_DTYPES
from mirage_kernels.generator.ir.text import to_json as graph_json
from mirage_kernels.generator.jobs.job import Job, Round, code_digest, work
from mirage_kernels.generator.recipe import Recipe, Shape, trace
from mirage_kernels.generator.request import Event, Progress
from mirage_kernels.generator.search.cases import Case, batch_dims, seen_dims, summed_dims
from mirage_kernels.generator.search.independent import independent_specs
from mirage_kernels.generator.search.kernels import Search, Task
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.problem import LARGEST_TILE, Problem
from mirage_kernels.generator.search.sketch import (
    Counts,
    Found,
    LibrarySketch,
    Limits,
    ProgramSketch,
)
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.verify import Prover
from mirage_kernels.generator.target import target

ENDLESS, LONG, SHORT = 2**18, 4096, 64  # what static dims of each class count as
MOST_SUMMED = 2**16  # elements of one line that a block may hold whole to sum them
SLOWEST = 2.5  # nominal time of programs that are verified, in units of the fastest one's
BATCH = 8  # programs that one task verifies
SEED = 20260


def shape_class(spec: Graph, extents: Mapping[str, int] | None = None) -> Graph:
    """Return `spec` with every static extent replaced by that of its class, stored as fp16.

    Dims count as what their `extents` are, where they are given.
    """
    known, summed = extents or {}, summed_dims(spec)

    def classed(value: Value) -> Value:
        dtype = DType.FP16 if value.type.dtype in STORAGE_DTYPES else value.type.dtype
        return replace(value, type=TensorType(tuple(map(class_of, value.type.dims)), dtype))

    def class_of(dim: Dim) -> Dim:
        size = known.get(dim.name, dim.size)
        longest = ENDLESS if size > MOST_SUMMED and dim.name in summed else LONG
        return dim if dim.dynamic else replace(dim, size=longest if size > LARGEST_TILE else SHORT)

    nodes = tuple(replace(n, outs=tuple(map(classed, n.outs))) for n in spec.nodes)
    return replace(spec, nodes=nodes)


@dataclass(frozen=True)
class Superoptimization(Job):
    """One search as a job: it is cut into tasks, and merged from their results."""

    spec: Graph  # of a shape class
    limits: Limits
    arch: str

    def identity(self) -> dict[str, Json]:
        """Return everything that the outcome depends on, the version of the code included."""
        return {
            "spec": graph_json(self.spec),
            "limits": dict(vars(self.limits)),
            "arch": self.arch,
            "seed": SEED,
            "code": code_digest(),
        }

    def next_round(self, earlier: Sequence[Sequence[Found]]) -> Round | None:
        """Return the tasks that search, then the tasks that verify what was found."""
        if not earlier:
            problem = Problem(self.spec, self.limits, target(self.arch))
            search, own = Search(problem.shortened()), {t.name for t in problem.tensors}
            parts = frozenset(t.name for t in search.problem.tensors) - own
            return Round("search", [partial(_searched, search, parts, t) for t in search.tasks()])
        if len(earlier) == 1:
            programs, _ = self._worth_verifying(earlier[0])
            prover = Prover(self.spec)
            batches = [programs[i : i + BATCH] for i in range(0, len(programs), BATCH)]
            return Round("verify", [partial(_verified, prover, batch) for batch in batches])
        return None

    def merge(self, rounds: Sequence[Sequence[Found]]) -> Found:
        """Return proved programs and counts."""
        found, batches = rounds
        programs, slow = self._worth_verifying(found)
        proved = tuple(p for batch in batches for p in batch.programs)
        counts = Counts(
            states=sum(f.counts.states for f in found),
            pruned=sum((Counter(f.counts.pruned) for f in found), Counter(time=slow)),
            candidates=len(programs) + slow,
            rejected=len(programs) - len(proved),
        )
        return Found(proved, counts)

    def _worth_verifying(self, found: Sequence[Found]) -> tuple[Sequence[ProgramSketch], int]:
        """Return the programs worth verifying, cheapest first; how many are too slow or too many.

        The nominal cost of a program bounds its time from below well enough to tell the hopeless
        ones.
        """
        every = dict.fromkeys(program for f in found for program in f.programs)
        ordered = sorted(every, key=lambda program: program.cost)
        if self.limits.kept is None or not ordered:
            return ordered, 0
        near = [p for p in ordered if p.cost <= SLOWEST * ordered[0].cost]
        kept = near[: self.limits.verified]
        return kept, len(ordered) - len(kept)


def _searched(search: Search, parts: frozenset[str], task: Task) -> Found:
    """Return what a task finds; the library cannot multiply parts of the spec: none is stored."""
    found = search.run(task)
    return Found(
        tuple(
            program
            for program in found.programs
            if not any(isinstance(k, LibrarySketch) and parts & {*k.args} for k in program.kernels)
        ),
        found.counts,
    )


def _verified(prover: Prover, batch: Sequence[ProgramSketch]) -> Found:
    return Found(tuple(p for p in batch if not reason_against(p, prover)))


def reason_against(program: ProgramSketch, prover: Prover) -> str:
    """Return why a program is not equal to the prover's spec, nothing if it proves equal."""
    try:
        graph = stabilise(lower(program, goal_of(prover.spec, DType.FP16)), DType.FP16)
        for number, case in enumerate(quick_cases(prover.spec)):
            prover.compare(graph, case, seed=SEED + number)
    except MirageError as error:
        return error.sentence
    return ""


def quick_cases(spec: Graph) -> list[Case]:
    """Return two quick draws: uneven tiles, steps and parts; and everything within one of each.

    The chosen muGraph is proved at length; dims that only number problems have one block.
    """
    alike, reduced = batch_dims(spec), summed_dims(spec)
    tiles = {d: 2 + i % 2 for i, d in enumerate(seen_dims(spec))}
    uneven = {d: n if d in alike else 2 * n + 1 for d, n in tiles.items()}
    uneven |= {d: 3 * tiles[d] + 1 for d in reduced}
    cut = tiles | {parts_of(d): 2 * tiles[d] for d in reduced}
    return [Case(cut, uneven), Case(cut, tiles)]


def goal_of(spec: Graph, storage: DType) -> Goal:
    """Return how the programs of a spec are lowered, dims whole."""
    result = spec.values[spec.outputs[0]].type
    return Goal(spec, replace(result, dtype=storage), storage, {})


def run_search(job: Job, *, jobs: int, progress: Progress) -> Found:
    """Return what a search finds that is made here, and kept nowhere; raise what it raises.

    The stage of an event is the word for a round.
    """
    for message in work(job, (), jobs):
        if isinstance(message, MirageError):
            raise message
        if isinstance(message, Found):
            return message
        text = f"{message.done} of {message.tasks} tasks"
        progress(Event(message.name, message.done, message.tasks, text))
    raise SearchError("the search ended without an outcome")


def superoptimize(
    spec: Graph,
    limits: Limits,
    arch: str,
    *,
    jobs: int = 1,
    progress: Progress = lambda event: None,
) -> Found:
    """Return the programs that are equal to `spec`, cheapest first; see `run_search`."""
    job = Superoptimization("superoptimize", shape_class(spec), limits, arch)
    return run_search(job, jobs=jobs, progress=progress)


def search_job(recipe: Recipe, shape: Shape, limits: Limits, *, arch: str, program: int = 0) -> Job:
    """Return the job whose outcome serves a recipe at a shape, in every storage type.

    Of a recipe of several independent programs it is the job of one. A dim counts as long as it is
    in any shape of the recipe, so that one search serves them all; a shape beyond them may be of a
    class of its own.
    """
    shapes = (*recipe.shapes, shape)
    longest = {d: max(s.dims.get(d, 0) for s in shapes) for s in shapes for d in s.dims}
    specs = independent_specs(trace(recipe, shape, DType.FP16), recipe.independent)
    spec = shape_class(specs[program], longest)
    return Superoptimization(recipe.name, spec, limits, arch)


def search_jobs(recipes: Sequence[Recipe], limits: Limits, *, arch: str) -> list[Job]:
    """Return the jobs of recipes at their own shapes, each once, in order."""
    jobs = [search_job(r, r.shapes[0], limits, arch=arch) for r in recipes if r.shapes]
    return list({job.key: job for job in jobs}.values())
