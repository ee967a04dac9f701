"""Where barriers of the block stand in a tile program, by depth.

A barrier is needed where a value goes through shared memory from one thread to another, and before
the bytes it lay in are written anew. A task's depth is the largest number of barriers on a path
that leads to it; tasks of one depth share an epoch, and so all paths share their barriers: as many
are needed as the longest path has, and no more are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.plan.program import Do, Statement, TileProgram

Edge = tuple[str, str]  # a task, and one that runs a barrier later


def depths(tasks: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """Return the most barriers on a path to each task; tasks come after those they wait for."""
    found: dict[str, int] = {}
    for task in tasks:
        found[task] = max((found[first] + 1 for first, then in edges if then == task), default=0)
    return found


def with_barriers(program: TileProgram) -> TileProgram:
    """Return the program with the fewest barriers, loads first in its loop.

    Warps read nothing but their own parts of a tile, hence there is none in the loop. Their sums
    lie in shared memory where the pipeline's stages were; stages of [inner, tokens] elements add
    them up, products multiply those, and the epilogue, one task, reads the sums of all warps.
    """
    sums = [s.out for s in program.meetings]
    stages = [f"stage {s.dim}" for s in program.stages]
    products = [s.out for s in program.products]
    edges = [("loop", total) for total in sums]
    edges += [(total, then) for total in sums for then in (*stages, "epilogue")]
    edges += [(stage, then) for stage in stages for then in products]
    edges += [(product, "epilogue") for product in products]
    first: dict[int, str] = {}  # task of each depth: a barrier stands before it
    for task, depth in depths(("loop", *sums, *stages, *products, "epilogue"), edges).items():
        first.setdefault(depth, task)

    def after(task: str, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        return (replace(statements[0], barrier=task in first.values()), *statements[1:])

    return replace(
        program,
        loop=tuple(sorted(program.loop, key=lambda s: s.do is not Do.LOAD)),
        meetings=tuple(s for m in program.meetings for s in after(m.out, [m])),
        stages=tuple(
            replace(s, statements=after(f"stage {s.dim}", s.statements)) for s in program.stages
        ),
        products=tuple(s for p in program.products for s in after(p.out, [p])),
        epilogue=after("epilogue", program.epilogue),
    )
