"""Runs the kernels of a schedule before they are written: they must compute what the muGraph does.

The knobs, stages and shared memory are those of the emitted kernels; tensors are as short as show
all that happens (`tiles/check.py`).
"""

from __future__ import annotations

from mirage_kernels.generator.ir import Graph, retile
from mirage_kernels.generator.plan.arranged import Kernels
from mirage_kernels.generator.plan.interpret import run
from mirage_kernels.generator.plan.lower import lowered
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.schedules import RANKED, prologue
from mirage_kernels.generator.schedules.loop import LoopKnobs, prologue_warps
from mirage_kernels.generator.schedules.producer_blocks import divided
from mirage_kernels.generator.schedules.row_wise import RowWise
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.tiles.check import STEPS, require_results, shortened


def require_runs(program: TileProgram, graph: Graph, knobs: Knobs) -> None:
    """Raise PlanError or TileError if kernels of such knobs differ from the muGraph, or race."""
    short, kernels, sizes = shortened_kernels(program, graph, knobs)
    require_results(short, lambda tensors: run(kernels, sizes, tensors), sizes)


def shortened_kernels(
    program: TileProgram, graph: Graph, knobs: Knobs
) -> tuple[Graph, Kernels, dict[str, int]]:
    """Return a short muGraph, what runs for it as the whole one's blocks do, extents of all dims.

    The loop has one step more than there are stages, so that each stage is used again.
    """
    whole, tiles = kernels_of(program, knobs), knobs.tiles(program.roles)
    depths = [(a.stages + 1) * a.slices * a.depth for _, a in whole]
    steps = -(-max(depths) // tiles.get(program.roles.depth, 1))
    short, sizes = shortened(retile(graph, tiles), max(STEPS, steps))
    made = kernels_of(lowered(program.recipe, short), knobs)
    kernels = [(p, blocks) for (p, _), (_, blocks) in zip(made, whole, strict=True)]
    return short, kernels, sizes


def kernels_of(program: TileProgram, knobs: Knobs) -> Kernels:
    """Return what runs for a muGraph, in the order of launches, as the knobs arrange it."""
    first: list[tuple[TileProgram, Knobs]] = []
    if warps := prologue_warps(knobs):
        first.append((prologue.prologue_program(program), RowWise(warps, 1)))
        program = prologue.main_program(program)
    elif isinstance(knobs, LoopKnobs) and knobs.producers:
        program = divided(program)
        assert program.producers is not None
        first.append((program.producers, knobs.producer_knobs))
    made = [*first, (program.streamed, knobs)]
    return [(p, RANKED[k.schedule].arranged(p, k)) for p, k in made]
