"""The planners' part of a tile program: whether layouts exist, and where barriers stand.

csrc/tile streams each warp's own part of a tile, the weights on the M side of the tensor cores, in
16-byte vectors from swizzled stages. A muGraph that has no such layouts is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.barriers import Edge, Section, schedule
from mirage_kernels.generator.plan.implementations import Offered
from mirage_kernels.generator.plan.layout_planner import Setup, plan_layouts
from mirage_kernels.generator.plan.layouts import Copy, Lanes, Swizzle
from mirage_kernels.generator.plan.program import Do, Statement, TileProgram
from mirage_kernels.generator.target import target

# What csrc/tile can run: `tests/plan/test_tiles.py` checks that nothing else would be cheaper.
WRITTEN = Offered(
    copies=(Copy.CP_ASYNC, Copy.PLAIN),
    swizzles=(Swizzle.HALVES,),
    per_warp=(True,),
    lanes=(Lanes.VECTORS,),
    any_warp_dim=False,
    any_m_side=False,
)
_LOOP, _EPILOGUE = "loop", "epilogue"


@lru_cache(maxsize=64)
def require_layouts(graph: Graph, arch: str) -> None:
    """Raise PlanError for a muGraph whose values have no layouts that csrc/tile can run."""
    plan_layouts(graph, Setup(target(arch), offered=WRITTEN))


def with_barriers(program: TileProgram) -> TileProgram:
    """Return the program with the fewest barriers, loads first in its loop.

    Warps read nothing but their own parts of a tile, hence there is none in the loop. Their sums
    lie in shared memory where the pipeline's stages were; stages of [inner, tokens] elements add
    them up, products multiply those, and the epilogue, one task, reads the sums of all warps.
    """
    sums = [s.out for s in program.meetings]
    stages = [f"stage {s.dim}" for s in program.stages]
    products = [s.out for s in program.products]
    edges = [Edge(_LOOP, total, barrier=True) for total in sums]
    edges += [Edge(total, then, barrier=True) for total in sums for then in (*stages, _EPILOGUE)]
    edges += [Edge(stage, then, barrier=True) for stage in stages for then in products]
    edges += [Edge(product, _EPILOGUE, barrier=True) for product in products]
    after = Section((*sums, *stages, *products, _EPILOGUE))
    made = schedule([Section((_LOOP,), loop=True), after], edges)
    first = {epoch[0] for epoch in made.order[1][1 - made.entry[1] :] if epoch}
    return replace(
        program,
        loop=(*program.loads, *(s for s in program.loop if s.do is not Do.LOAD)),
        meetings=tuple(replace(s, barrier=s.out in first) for s in program.meetings),
        stages=tuple(
            replace(s, statements=_barrier_first(s.statements, f"stage {s.dim}" in first))
            for s in program.stages
        ),
        products=tuple(replace(p, barrier=p.out in first) for p in program.products),
        epilogue=_barrier_first(program.epilogue, _EPILOGUE in first),
    )


def _barrier_first(statements: Sequence[Statement], waits: bool) -> tuple[Statement, ...]:
    first, *rest = statements
    return (replace(first, barrier=waits), *rest)
