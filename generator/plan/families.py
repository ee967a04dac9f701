"""The programs that can serve a muGraph: as the planners make it, and with nothing apart.

What is computed apart (`apart.py`) concerns a whole emitted file, hence all variants of a kernel.
All other plans are a matter of a variant's knobs.
"""

from __future__ import annotations

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.lower import tile_program
from mirage_kernels.generator.plan.program import TileProgram
from mirage_kernels.generator.plan.tiles import Planning


def families(recipe: str, graph: Graph, arch: str) -> tuple[TileProgram, ...]:
    """Return the program that the rule takes, then the other one if there is one.

    Raises PlanError for a muGraph without a plan.
    """
    planned = tile_program(recipe, graph, Planning(arch=arch))
    if not planned.apart:
        return (planned,)
    return planned, tile_program(recipe, graph, Planning(arch=arch, apart=False))


def member(programs: tuple[TileProgram, ...], *, apart: bool) -> TileProgram:
    """Return the program that computes something apart, or nothing; the rule's if it is alone."""
    return next((p for p in programs if bool(p.apart) is apart), programs[0])
