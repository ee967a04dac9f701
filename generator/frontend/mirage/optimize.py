"""Superoptimizing a recorded kernel graph: search, proofs, the caller's constraints, the result.

Mirage enumerates what its options list. Here they say which of the muGraphs that were found will
do: grids and loop counts choose tile sizes, maps must be among those listed. As for recipes, what
is returned has safe exponentials and passes the numeric gate.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

from msgspec import Meta, ValidationError, convert

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.errors import MirageError, SearchError, VerifyError
from mirage_kernels.generator.frontend.mirage.running import Runnable
from mirage_kernels.generator.frontend.mirage.verdicts import proof_of, recalled
from mirage_kernels.generator.frontend.positional.lower import Layout, Lowered, flat, sizes_of
from mirage_kernels.generator.frontend.positional.program import AXES, NOWHERE, Program, Three
from mirage_kernels.generator.frontend.positional.spelling import spelled
from mirage_kernels.generator.ir import Axis, DType, Graph, Node, TensorType, retile, to_text
from mirage_kernels.generator.ir.infer import extents_of
from mirage_kernels.generator.meaning.cost import estimate
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.generator.records.files import all_or_nothing
from mirage_kernels.generator.request import Event
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.lower import Goal
from mirage_kernels.generator.search.select import mugraphs, rank
from mirage_kernels.generator.search.sketch import Counts, Found, Limits
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.superoptimizer import shape_class
from mirage_kernels.generator.search.superoptimizer import superoptimize as find
from mirage_kernels.generator.search.verify import Proof
from mirage_kernels.generator.target import target

if TYPE_CHECKING:
    from mirage_kernels.generator.frontend.mirage.builder import KernelGraph

KERNELS = {None: 2, "attention": 2, "mlp": 1, "lora": 1}  # that a preset's programs may launch
KEPT = 64  # muGraphs that are returned
_MAPS = "[(x, y, z), ...], whole numbers"
_NUMBERS = "[4, 16, ...], whole numbers"
_WRITTEN = {  # how options are written; without a form those of Mirage that have no effect here
    **{"imaps": _MAPS, "omaps": _MAPS, "griddims": _MAPS, "fmaps": _NUMBERS, "franges": _NUMBERS},
    "config": '"attention", "mlp" or "lora"',
    "backend": '"cuda" or "triton"',
    "verbose": "True",
    "jobs": "a number of processes",
    "previous_checkpoint": "the path of a file",
    **dict.fromkeys(("blockdims", "warmup_iters", "profile_iters", "save_codes"), ""),
    **dict.fromkeys(("use_graph_dataset", "use_cached_graphs", "is_formal_verified"), ""),
}


@dataclass(frozen=True)
class Options:
    """The options of one call; None where anything will do.

    `previous_checkpoint` is a file of muGraphs to take in place of a search.
    """

    imaps: list[Three] | None = None
    omaps: list[Three] | None = None
    griddims: list[Three] | None = None
    fmaps: list[int] | None = None
    franges: list[int] | None = None
    config: Literal["attention", "mlp", "lora"] | None = None
    backend: Literal["cuda", "triton"] | None = None
    verbose: bool | int = False
    jobs: Annotated[int, Meta(ge=1)] = 1
    previous_checkpoint: str | None = None


def read_options(given: Mapping[str, object]) -> Options:
    """Return the options of a call; raise MirageError for a wrong name or value."""
    known = {n: str(v) if isinstance(v, Path) else v for n, v in given.items()}
    for name, value in known.items():
        if name not in _WRITTEN:
            hint = f"options: {', '.join(_WRITTEN)}"
            raise MirageError(f"superoptimize has no option {name!r}", hint)
        try:
            convert({name: value}, Options)
        except ValidationError as error:
            raise MirageError(f"{name} is {value!r}", f"{name}={_WRITTEN[name]}") from error
    return convert(known, Options)


def _tilings(graph: Graph, node: Node, wanted: Options) -> Iterator[dict[str, int]]:
    """Yield tile sizes, by dim, that give a block graph one of the wanted grids and loops.

    A grid's numbers of blocks go to the axes in any order.
    """
    assert node.body is not None
    assert node.body.space is not None
    grid, loop = node.body.space.grid, node.body.space.loop
    sizes = extents_of([graph.values[a].type for a in node.args])
    if wanted.franges is not None and loop is None and 1 not in wanted.franges:
        return  # no loop counts as one iteration
    loops: list[list[tuple[Axis, int]]] = [[]]
    if loop is not None and wanted.franges is not None:
        loops = [[(loop, n)] for n in wanted.franges]
    counts: list[tuple[int, ...]] = [()] if wanted.griddims is None else []
    for blocks in ([n for n in one if n != 1] for one in wanted.griddims or ()):
        if len(blocks) <= len(grid):
            counts += itertools.permutations([*blocks, *[1] * (len(grid) - len(blocks))])
    for of_axes, looped in itertools.product(dict.fromkeys(counts), loops):
        pairs = [*zip(grid, of_axes, strict=False), *looped]
        if all(n > 0 and sizes[axis.dim] % n == 0 for axis, n in pairs):
            yield {axis.tile_key: sizes[axis.dim] // n for axis, n in pairs}


def maps_fit(found: Lowered, wanted: Options) -> bool:
    """Say whether every block graph cuts its tensors as wanted, x, y and z in any order."""
    graph = found.graph
    named = (*(n.name for n in graph.inputs), *graph.outputs)
    layouts: dict[str, Layout] = {
        name: tuple((d,) for d in v.type.names) for name, v in graph.values.items()
    }
    layouts |= dict(zip(named, (*found.inputs, *found.outputs), strict=True))
    for block in graph.blocks:
        assert block.body is not None
        names = (*block.args, *(v.name for v in block.outs))
        for node, name in zip(block.body.of("input", "output"), names, strict=True):
            places = {dim: i for i, row in enumerate(layouts[name]) for dim in row}
            cuts = [places[dim] for dim in node.cuts if dim is not None]
            cuts += [NOWHERE] * (len(AXES) - len(cuts))
            maps = wanted.omaps if node.op == "output" else wanted.imaps
            if maps is not None and sorted(cuts) not in [sorted(m) for m in maps]:
                return False
            looped = places[node.loop_cut] if node.loop_cut else NOWHERE
            if node.op == "input" and wanted.fmaps is not None and looped not in wanted.fmaps:
                return False
    return True


@dataclass(frozen=True)
class MuGraph(Runnable):
    """A muGraph equal to a recorded graph, and how fast it is said to be.

    The best one holds the `ranking`, best first: it is a sequence of them all. The search that
    found them has `counts` and `proved` so many.
    """

    program: Program
    found: Lowered
    microseconds: float
    spec: Lowered = field(repr=False)
    counts: Counts = field(repr=False)
    proved: int = field(repr=False)
    ranking: Accurate | None = field(default=None, repr=False)

    @property
    def candidates(self) -> Sequence[MuGraph]:
        """This muGraph and the others, those included that are not measured yet."""
        return self.ranking.candidates if self.ranking else (self,)

    @property
    def gate(self) -> Gate:
        """The numeric gate of the recorded graph, over this muGraph's dims."""
        return gate_of(spelled(self.spec, self.found))

    def lowered(self) -> Lowered:
        """Return the graph with named dims."""
        return self.found

    def mathematics(self) -> Lowered:
        """Return the recorded graph."""
        return self.spec

    def prove(self) -> Proof:
        """Return the record of a proof that the graph equals the recorded one, at small sizes."""
        return proof_of(self.found, self.spec)

    def generate_kernels(
        self, folder: str | Path, name: str, inputs: Sequence[str] = ()
    ) -> list[Path]:
        """Write the kernel of the best muGraph that has one into a folder; return the files.

        `mirage-kernels compile FOLDER` compiles it, `mirage_kernels.program(name)` runs it.
        """
        from mirage_kernels.generator.frontend.mirage.kernels import kernel_of

        with all_or_nothing():
            return kernel_of(self, name, inputs).write(Path(folder))

    def choices(self) -> Iterator[MuGraph]:
        """Yield this muGraph and the others."""
        return iter(self.ranking or (self,))

    def __iter__(self) -> Iterator[MuGraph]:
        return self.choices()

    def __len__(self) -> int:
        return sum(1 for _ in self.choices())

    def __getitem__(self, index: int) -> MuGraph:
        return [*self.choices()][index]

    def __str__(self) -> str:
        return f"{self.microseconds:.2f} us predicted\n{to_text(self.found.graph)}"


class Accurate:
    """The muGraphs that pass the numeric gate, best first, each measured when it is asked for."""

    def __init__(self, candidates: Sequence[MuGraph]) -> None:
        self.candidates, self._left, self._passed = candidates, iter(candidates), list[MuGraph]()
        self.reason = ""  # why the last one that was refused was

    def __iter__(self) -> Iterator[MuGraph]:
        yield from self._passed
        for one in self._left:
            try:
                one.gate.measure(one.found.graph)
            except VerifyError as error:
                self.reason = error.sentence
                continue
            self._passed.append(one)
            yield one


def superoptimize(graph: KernelGraph, **options: object) -> MuGraph:
    """Search for muGraphs equal to a recorded graph and return the fastest, with the others.

    Raises MirageError for options that don't exist, SearchError where nothing that was found meets
    the constraints, GraphError for a graph that has no meaning.
    """
    wanted = read_options(options)
    spec = graph.lowered()
    if spec.graph.blocks:
        raise MirageError(
            "the graph has hand-written block graphs: there is nothing left to search",
            "call it as it is, or superoptimize the same mathematics without customized",
        )
    if len(spec.graph.outputs) != 1:
        raise MirageError(
            f"the graph has {len(spec.graph.outputs)} results, the search takes one",
            "mark_output one tensor",
        )
    if wanted.previous_checkpoint is not None:
        storage = storage_of(spec)
        told = recalled(Path(wanted.previous_checkpoint), spec)
        found = [replace(one, graph=stabilise(one.graph, storage)) for one in told]
        counts = Counts(candidates=len(found))
    else:
        graphs, counts = search(spec, wanted)
        found = [Lowered(g, spec.inputs, spec.outputs) for g in graphs]
    timed = fitting(found, wanted)[:KEPT]
    if not timed:
        given = {n: getattr(wanted, n) for n in ("imaps", "omaps", "griddims", "fmaps", "franges")}
        constraints = ", ".join(f"{n}={v}" for n, v in given.items() if v is not None) or "none"
        raise SearchError(
            f"none of the {len(found)} muGraphs found meets the constraints: {constraints}",
            "leave some of them out; grids and loop counts must divide the dims that they cut",
        )
    accurate = Accurate(
        [MuGraph(graph.program, one, time, spec, counts, len(found)) for one, time in timed]
    )
    best = next(iter(accurate), None)
    if best is None:
        raise SearchError(
            f"none of {len(timed)} muGraphs is accurate in {storage_of(spec).value}: "
            f"{accurate.reason}",
            "leave out some constraints, or sum and exponentiate smaller numbers",
        )
    best = replace(best, ranking=accurate)
    for number, one in enumerate(best if wanted.verbose else ()):
        print(f"muGraph {number}: {one}", file=sys.stderr)
    return best


@cache
def gate_of(spec: Lowered) -> Gate:
    """Return the numeric gate of a recorded graph: what a recipe of the same program has."""
    rows = [row for layout in (*spec.inputs, *spec.outputs) for row in layout]
    outer = tuple(dict.fromkeys(d for row in rows for d in row[:-1]))
    return Gate(spec.graph, recipe_of(spec), storage_of(spec), outer=outer)


def storage_of(spec: Lowered) -> DType:
    """Return the element type that a recorded graph is computed in: that of its first input."""
    return spec.graph.inputs[0].out.type.dtype


def recipe_of(spec: Lowered) -> Recipe:
    """Return what is declared of a recorded graph.

    The first dim of the first input that comes out numbers what a call brings.
    """
    graph = spec.graph
    dims = {n.name: " ".join(n.out.type.names) for n in graph.inputs}
    result = graph.values[graph.outputs[0]].type
    rows = [d for d in flat(spec.inputs[0]) if d in result.names]
    return Recipe(
        inputs=dims,
        output=" ".join(flat(spec.outputs[0])),
        dynamic={d: result.dim(d).size for d in rows[:1]},
        reference=no_reference,
    )


def no_reference(*inputs: object) -> NoReturn:
    """Raise MirageError: a recorded graph has no PyTorch program beside it."""
    raise MirageError("a recorded graph has no reference")


_searched: dict[tuple[Graph, int], Found] = {}


def search(spec: Lowered, wanted: Options) -> tuple[list[Graph], Counts]:
    """Return every muGraph that the search finds and proves, made safe, at its best tile sizes.

    And what the search counted. What was found is kept for the process, for other extents of the
    same classes too: constraints only choose among it.
    """

    def watch(event: Event) -> None:
        if wanted.verbose:
            print(f"{event.stage} {event.done}/{event.total}", file=sys.stderr)

    graph, limits = spec.graph, Limits(kernels=KERNELS[wanted.config])
    key = (shape_class(graph), limits.kernels)
    if key not in _searched:
        _searched[key] = find(graph, limits, DEFAULT_ARCH, jobs=wanted.jobs, progress=watch)
    found, storage = _searched[key], storage_of(spec)
    type_ = graph.values[graph.outputs[0]].type
    result = TensorType(tuple(map(type_.dim, flat(spec.outputs[0]))), storage)
    programs = mugraphs(found.programs, Goal(graph, result, storage, {}))
    return [one.graph for one in rank(programs, graph, target(DEFAULT_ARCH))], found.counts


def fitting(found: Sequence[Lowered], wanted: Options) -> list[tuple[Lowered, float]]:
    """Return the muGraphs that meet the constraints with their microseconds, the fastest first.

    Each has the best tile sizes that give its kernels a wanted grid and loop.
    """
    timed: list[tuple[Lowered, float]] = []
    for one in (f for f in found if maps_fit(f, wanted)):
        fitted: list[tuple[Lowered, float]] = []
        choices = [list(_tilings(one.graph, node, wanted)) for node in one.graph.blocks]
        for combination in itertools.product(*choices):
            tiles: dict[str, int] = {}
            if all(tiles.setdefault(d, n) == n for each in combination for d, n in each.items()):
                graph = retile(one.graph, tiles) if tiles else one.graph
                time = estimate(graph, sizes_of(graph), target(DEFAULT_ARCH)).microseconds
                fitted.append((replace(one, graph=graph), time))
        timed += sorted(fitted, key=lambda pair: pair[1])[:1]
    return sorted(timed, key=lambda pair: pair[1])
