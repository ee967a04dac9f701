"""Superoptimizing a recorded kernel graph: search, proofs, the caller's constraints, the result."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_kernels.generator.build.compile import DEFAULT_ARCH
from mirage_kernels.generator.errors import MirageError, SearchError
from mirage_kernels.generator.frontend.mirage.running import Runnable
from mirage_kernels.generator.frontend.mirage.search_options import (
    Options,
    fitted,
    maps_fit,
    read_options,
)
from mirage_kernels.generator.frontend.mirage.verification import proof_of, recalled
from mirage_kernels.generator.frontend.positional.lower import Lowered, flat, sizes_of
from mirage_kernels.generator.frontend.positional.program import Program
from mirage_kernels.generator.ir import Graph, TensorType, to_text
from mirage_kernels.generator.meaning.cost import estimate
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.problem import Limits
from mirage_kernels.generator.search.select import rank
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.search.superoptimizer import superoptimize as find
from mirage_kernels.generator.search.verify import Proof
from mirage_kernels.generator.target import target

if TYPE_CHECKING:
    from mirage_kernels.generator.frontend.mirage.builder import KernelGraph

KERNELS = {None: 2, "attention": 2, "mlp": 1, "lora": 1}  # that a preset's programs may launch
KEPT = 64  # muGraphs that are returned


@dataclass(frozen=True)
class MuGraph(Runnable):
    """A muGraph equal to a recorded graph, and how fast it is said to be.

    The best one holds the `others`, best first: it is a sequence of them all.
    """

    program: Program
    found: Lowered
    microseconds: float
    spec: Lowered = field(repr=False)
    others: tuple[MuGraph, ...] = ()

    def lowered(self) -> Lowered:
        """Return the graph with named dims."""
        return self.found

    def mathematics(self) -> Lowered:
        """Return the recorded graph."""
        return self.spec

    def prove(self) -> Proof:
        """Return the record of a proof that the graph equals the recorded one, at small sizes."""
        return proof_of(self.found, self.spec)

    def choices(self) -> Sequence[MuGraph]:
        """Return this muGraph and the others."""
        return (self, *self.others)

    def __iter__(self) -> Iterator[MuGraph]:
        return iter(self.choices())

    def __len__(self) -> int:
        return len(self.choices())

    def __getitem__(self, index: int) -> MuGraph:
        return self.choices()[index]

    def __str__(self) -> str:
        return f"{self.microseconds:.2f} us predicted\n{to_text(self.found.graph)}"


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
        found = recalled(Path(wanted.previous_checkpoint), spec)
    else:
        found = [Lowered(g, spec.inputs, spec.outputs) for g in search(spec, wanted)]
    timed = fitting(found, wanted)
    if not timed:
        raise SearchError(
            f"none of the {len(found)} muGraphs found meets the constraints: "
            f"{wanted.constraints()}",
            "leave some of them out; grids and loop counts must divide the dims that they cut",
        )
    best, *others = (MuGraph(graph.program, one, time, spec) for one, time in timed[:KEPT])
    if wanted.verbose:
        for number, one in enumerate((best, *others)):
            print(f"muGraph {number}: {one}", file=sys.stderr)
    return replace(best, others=tuple(others))


_searched: dict[tuple[Graph, int], list[Graph]] = {}


def search(spec: Lowered, wanted: Options) -> list[Graph]:
    """Return every muGraph that the search finds and proves, made safe, at its best tile sizes.

    What was found is kept for the process: constraints only choose among it.
    """

    def watch(stage: str, done: int, tasks: int) -> None:
        if wanted.verbose:
            print(f"{stage} {done}/{tasks}", file=sys.stderr)

    key = (spec.graph, KERNELS[wanted.config])
    if key not in _searched:
        limits = Limits(kernels=key[1])
        found = find(spec.graph, limits, DEFAULT_ARCH, jobs=wanted.jobs, progress=watch)
        storage = spec.graph.inputs[0].out.type.dtype
        type_ = spec.graph.values[spec.graph.outputs[0]].type
        result = TensorType(tuple(map(type_.dim, flat(spec.outputs[0]))), storage)
        goal = Goal(spec.graph, result, storage, {})
        graphs = [stabilise(lower(program, goal), storage) for program in found.programs]
        ranked = rank(graphs, spec.graph, target(DEFAULT_ARCH))
        _searched[key] = [one.graph for one in ranked]
    return _searched[key]


def fitting(found: Sequence[Lowered], wanted: Options) -> list[tuple[Lowered, float]]:
    """Return the muGraphs that meet the constraints with their microseconds, the fastest first."""
    on, timed = target(DEFAULT_ARCH), []
    for one in found:
        if maps_fit(one, wanted):
            tilings = [replace(one, graph=g) for g in fitted(one.graph, wanted)]
            times = [estimate(t.graph, sizes_of(t.graph), on).microseconds for t in tilings]
            timed += sorted(zip(tilings, times, strict=True), key=lambda pair: pair[1])[:1]
    return sorted(timed, key=lambda pair: pair[1])
