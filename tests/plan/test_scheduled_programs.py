"""Scheduled programs, run as their schedules arrange them: each is its muGraph, changed ones not.

Whatever one warp leaves in shared memory for others may be read only behind a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, combinations, product
from pathlib import Path

import pytest
from handmade_lines import mugraph

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.arranged import RING, Arranged, Kernels
from mirage_kernels.generator.plan.interpret import run
from mirage_kernels.generator.plan.lower import lowered
from mirage_kernels.generator.plan.program import Layout, Roles, Statement, TileProgram
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.records.record import load_record
from mirage_kernels.generator.schedules.row_wise import RowWise
from mirage_kernels.generator.schedules.run import require_runs, shortened_kernels
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.schedules.sliced_k import SlicedK
from mirage_kernels.generator.tiles.check import require_results
from mirage_kernels.generator.tiles.memory import TileError

KERNELS = Path(__file__).parents[2] / "kernels" / "sm_90a"
PARTS = ("lines", "fetches", "received", "loop", "reductions", "stages", "products", "epilogue")
One = tuple[TileProgram, Arranged]
Form = tuple[str, str]  # a recipe, and a schedule with all that goes with it


@cache
def forms() -> dict[Form, tuple[TileProgram, Graph, Knobs]]:
    """Every form of the catalog as each of its schedules runs it, of the smallest tiles."""
    found = dict[Form, tuple[TileProgram, Graph, Knobs]]()
    for path in sorted(KERNELS.glob("*/*_fp16.json")):
        record = load_record(path)
        if not isinstance(record.roles, Roles):
            continue
        program = lowered(record.recipe, record.graph)
        for variant in record.variants:
            form = (record.recipe, variant.knobs.label)
            found.setdefault(form, (program, record.graph, variant.knobs))
    return found


def require(graph: Graph, kernels: Kernels, sizes: dict[str, int]) -> None:
    require_results(graph, lambda tensors: run(kernels, sizes, tensors), sizes)


@pytest.mark.parametrize("form", forms(), ids=", ".join)
def test_a_schedule_computes_what_the_mugraph_does(form: Form) -> None:
    require_runs(*forms()[form])


KNOBS = {"ntrans": RowWise(1, 1), "layer_norm_linear": SlicedK(8, 16, 4, 1, 2)}


@pytest.mark.parametrize("name", ["ntrans", "layer_norm_linear"])
def test_handmade_lines_are_their_mugraph(name: str) -> None:
    graph = with_threads(mugraph(name))
    require_runs(lowered("mine", graph), graph, KNOBS[name])


@pytest.mark.parametrize("name", ["fused", "adapted", "normed_adapted"])
def test_handmade_loops_are_their_mugraph(request: pytest.FixtureRequest, name: str) -> None:
    graph = with_threads(request.getfixturevalue(name)())
    for knobs in (SlicedK(8, 16, 3, 1, 2), SlicedK(16, 32, 1, 2, 3)):
        require_runs(lowered("mine", graph), graph, knobs)


# -- changed programs ------------------------------------------------------------------------------


def said(program: TileProgram, part: str) -> tuple[Statement, ...]:
    stages = tuple(chain.from_iterable(s.statements for s in program.stages))
    return stages if part == "stages" else getattr(program, part)


def saying(program: TileProgram, part: str, *statements: Statement) -> TileProgram:
    if part != "stages":
        return replace(program, **{part: statements})
    return replace(program, stages=(replace(program.stages[0], statements=statements),))


def every(program: TileProgram) -> Iterator[tuple[str, int, Statement]]:
    for part in PARTS:
        yield from ((part, i, s) for i, s in enumerate(said(program, part)))


def changed(program: TileProgram, part: str, i: int, *instead: Statement) -> TileProgram:
    own = said(program, part)
    return saying(program, part, *own[:i], *instead, *own[i + 1 :])


def dropped_statements(program: TileProgram, blocks: Arranged) -> Iterator[One]:
    for part, i, _ in every(program):
        yield changed(program, part, i), blocks


def dropped_barriers(program: TileProgram, blocks: Arranged) -> Iterator[One]:
    for part, i, s in every(program):
        if s.barrier and (blocks.waits or part != "reductions"):
            yield changed(program, part, i, replace(s, barrier=False)), blocks


def moved_statements(program: TileProgram, blocks: Arranged) -> Iterator[One]:
    """A statement at the end of the part before its own, or at the beginning of the one behind."""
    parts = [p for p in PARTS if said(program, p)]
    for part, i, s in every(program):
        without, at = changed(program, part, i), parts.index(part)
        for before in parts[at - 1 : at] if at else ():
            yield saying(without, before, *said(program, before), s), blocks
        for behind in parts[at + 1 : at + 2]:
            yield saying(without, behind, s, *said(program, behind)), blocks


def other_layouts(program: TileProgram, blocks: Arranged) -> Iterator[One]:
    layouts = list(Layout)
    for part, i, s in every(program):
        other = layouts[layouts.index(s.layout) - 1]
        yield changed(program, part, i, replace(s, layout=other)), blocks


def overlaid_values(program: TileProgram, blocks: Arranged) -> Iterator[One]:
    """A value where another lies that is needed at the same time."""
    early = [s.out for s in (*program.fetches, *program.statistics, *program.received)]
    met = [s.out for s in program.reductions]
    for a, b in chain(combinations(early, 2), product(early, [RING]), combinations(met, 2)):
        yield program, replace(blocks, offsets={**blocks.offsets, a: blocks.offsets[b]})


def another_stage(program: TileProgram, blocks: Arranged) -> Iterator[One]:
    loaded = -(-program.extents[program.roles.depth] // max(1, blocks.slices * blocks.depth))
    if program.loop and loaded > blocks.stages:
        yield program, replace(blocks, stages=blocks.stages + 1)


@pytest.mark.parametrize(
    "change",
    [
        dropped_statements,
        dropped_barriers,
        moved_statements,
        other_layouts,
        overlaid_values,
        another_stage,
    ],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("form", forms(), ids=", ".join)
def test_a_changed_program_is_refused(
    form: Form, change: Callable[[TileProgram, Arranged], Iterator[One]]
) -> None:
    graph, kernels, sizes = shortened_kernels(*forms()[form])
    for i, kernel in enumerate(kernels):
        for mutant in change(*kernel):
            with pytest.raises(MirageError):
                require(graph, [*kernels[:i], mutant, *kernels[i + 1 :]], sizes)


def test_a_race_is_named() -> None:
    graph, ((program, blocks),), sizes = shortened_kernels(*forms()["gated_mlp", "sliced_k"])
    (first, *rest) = program.epilogue
    mutant = replace(program, epilogue=(replace(first, barrier=False), *rest))
    with pytest.raises(TileError, match="is read without a barrier behind what writes it"):
        require(graph, [(mutant, blocks)], sizes)
