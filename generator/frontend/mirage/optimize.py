"""Superoptimizing a recorded kernel graph: search, proofs, the caller's constraints, the result."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.errors import MirageError, SearchError
from mirage_kernels.generator.frontend.mirage.constraints import (
    Constraints,
    fitted,
    maps_fit,
    read_options,
)
from mirage_kernels.generator.frontend.mirage.running import Runnable, Signature
from mirage_kernels.generator.frontend.mirage.verification import proof_of, recalled
from mirage_kernels.generator.frontend.positional.lower import Lowered, sizes_of
from mirage_kernels.generator.ir import Graph, TensorType, retile, to_text
from mirage_kernels.generator.meaning.cost import estimate
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.problem import Limits
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.superoptimizer import superoptimize as find
from mirage_kernels.generator.search.verify import Proof
from mirage_kernels.generator.target import target

if TYPE_CHECKING:
    from mirage_kernels.generator.frontend.mirage.builder import KernelGraph

KERNELS = {None: 2, "attention": 2, "mlp": 1, "lora": 1}  # that a preset's programs may launch
KEPT, TUNED = 64, 8  # muGraphs that are returned; whose tile sizes are chosen with care
WIDTHS, DEPTHS, PARTS = (64, 16, 32, 128), (128, 64, 256), (8, 4, 16)  # of tiles; of a split


@dataclass(frozen=True)
class MuGraph(Runnable):
    """A muGraph that was found: equal to the recorded graph, and how fast it is said to be."""

    found: Lowered
    tensors: Signature
    microseconds: float
    spec: Lowered = field(repr=False)

    def lowered(self) -> Lowered:
        """Return the graph with named dims."""
        return self.found

    def signature(self) -> Signature:
        """Return the positional tensors that the program takes and gives."""
        return self.tensors

    def mathematics(self) -> Lowered:
        """Return the recorded graph."""
        return self.spec

    def prove(self) -> Proof:
        """Return the record of a proof that the graph equals the recorded one, at small sizes."""
        return proof_of(self.found, self.spec)

    def __str__(self) -> str:
        return f"{self.microseconds:.2f} us predicted\n{to_text(self.found.graph)}"


@dataclass(frozen=True)
class MuGraphs(MuGraph):
    """All muGraphs that were found, best first; to call, draw or write it takes the best."""

    others: tuple[MuGraph, ...] = ()

    @property
    def all(self) -> tuple[MuGraph, ...]:
        """The best one, then the others."""
        best = MuGraph(self.found, self.tensors, self.microseconds, self.spec)
        return (best, *self.others)

    def choices(self) -> Sequence[MuGraph]:
        """Return the muGraphs to plan, best first."""
        return self.all

    def __iter__(self) -> Iterator[MuGraph]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, index: int) -> MuGraph:
        return self.all[index]


def superoptimize(graph: KernelGraph, **options: object) -> MuGraphs:
    """Search for muGraphs equal to a recorded graph and return them, the fastest first.

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
    if wanted.checkpoint is not None:
        found = recalled(Path(wanted.checkpoint), spec)
    else:
        found = [Lowered(g, spec.inputs, spec.outputs) for g in search(spec, wanted)]
    made = fitting([MuGraph(one, graph.signature(), 0.0, spec) for one in found], wanted)
    if not made:
        raise SearchError(
            f"none of the {len(found)} muGraphs found meets the constraints: {wanted.text()}",
            "leave some of them out; grids and loop counts must divide the dims that they cut",
        )
    if wanted.verbose:
        for number, one in enumerate(made):
            print(f"muGraph {number}: {one}", file=sys.stderr)
    best = made[0]
    return MuGraphs(best.found, best.tensors, best.microseconds, best.spec, tuple(made[1:]))


def result_type(spec: Lowered) -> TensorType:
    """Return the type of a graph's result in device memory, its dims in positional order."""
    type_ = spec.graph.values[spec.graph.outputs[0]].type
    names = [name for row in spec.outputs[0] for name in row]
    dims = {d.name: d for d in type_.dims}
    storage = spec.graph.inputs[0].out.type.dtype
    return TensorType(tuple(dims[n] for n in names), storage)


_searched: dict[tuple[Graph, int], tuple[Graph, ...]] = {}


def search(spec: Lowered, wanted: Constraints) -> tuple[Graph, ...]:
    """Return every muGraph that the search finds and proves, cheapest first, made safe.

    What was found is kept for the process: constraints only choose among it.
    """

    def watch(stage: str, done: int, tasks: int) -> None:
        if wanted.verbose:
            print(f"{stage} {done}/{tasks}", file=sys.stderr)

    key = (spec.graph, KERNELS[wanted.config])
    if key not in _searched:
        limits = Limits(kernels=key[1])
        found = find(spec.graph, limits, DEFAULT_ARCH, jobs=wanted.jobs, progress=watch)
        result = result_type(spec)
        goal = Goal(spec.graph, result, result.dtype, {})
        graphs = (stabilise(lower(program, goal), result.dtype) for program in found.programs)
        _searched[key] = tuple(graphs)
    return _searched[key]


def fitting(muGraphs: Sequence[MuGraph], wanted: Constraints) -> list[MuGraph]:  # noqa: N803
    """Return the muGraphs that meet the constraints, the fastest first.

    All are timed at ordinary tile sizes, the fastest of them then at their own best ones. Those of
    a checkpoint keep the sizes that they have there, unless grids or loops are asked for.
    """
    tilings = _tilings if wanted.checkpoint is None else lambda graph: iter([graph])
    kept: list[MuGraph] = []
    for one in muGraphs:
        graph = one.found.graph
        names = [*(n.name for n in graph.inputs), *graph.outputs]
        layouts = dict(zip(names, (*one.found.inputs, *one.found.outputs), strict=True))
        if maps_fit(graph, layouts, wanted):
            kept += _best(one, fitted(next(tilings(graph)), wanted))
    kept.sort(key=_microseconds)
    tuned = [
        _best(one, (g for t in tilings(one.found.graph) for g in fitted(t, wanted)))
        for one in kept[:TUNED]
    ]
    return sorted([*itertools.chain(*tuned), *kept[TUNED:KEPT]], key=_microseconds)


def _microseconds(one: MuGraph) -> float:
    return one.microseconds


def _best(one: MuGraph, graphs: Iterable[Graph]) -> list[MuGraph]:
    """Return the fastest of a muGraph's tilings, nothing where there is none."""
    on = target(DEFAULT_ARCH)
    timed = (
        replace(
            one,
            found=replace(one.found, graph=g),
            microseconds=estimate(g, sizes_of(g), on).microseconds,
        )
        for g in graphs
    )
    return sorted(timed, key=_microseconds)[:1]


def _tilings(graph: Graph) -> Iterator[Graph]:
    """Yield a muGraph at a few tile sizes, ordinary ones first."""
    sizes = sizes_of(graph)
    choices: dict[str, tuple[int, ...]] = {}
    for space in (n.body.space for n in graph.blocks if n.body and n.body.space):
        for axis in space.axes:
            extent = sizes[axis.dim]
            tiles: tuple[int, ...] = DEPTHS if axis == space.loop else WIDTHS
            if axis.reduced:
                tiles = tuple(-(-extent // parts) for parts in PARTS if parts <= extent)
            choices[axis.tile_key] = tuple(dict.fromkeys(min(t, extent) for t in tiles))
    for chosen in itertools.product(*choices.values()):
        yield retile(graph, dict(zip(choices, chosen, strict=True)))
