"""The planners' part of a tile program: sides and swizzle, the order of statements, barriers.

The writers' vocabulary streams slices of tiles through warps of their own: weights on the M side
of the tensor cores, from a swizzled ring. A muGraph that has no such layouts is refused.
What is left to choose is the order of statements and the barriers between them, as for any program.
A planner may be left out, to measure what it brings: no shipped kernel leaves out any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.barriers import (
    Edge,
    Schedule,
    Section,
    barrier_everywhere,
    schedule,
)
from mirage_kernels.generator.plan.forms import Copy, Lanes, Swizzle
from mirage_kernels.generator.plan.implementations import Offered
from mirage_kernels.generator.plan.layouts import Layouts, Setup, layouts
from mirage_kernels.generator.plan.program import Do, Statement, TileProgram
from mirage_kernels.generator.target import target

# What csrc/tile can write down: cp.async into slices of warps, octets, the depth dealt out.
WRITTEN = Offered(
    copies=(Copy.CP_ASYNC, Copy.PLAIN),
    swizzles=(Swizzle.HALVES,),
    slices=(True,),
    lanes=(Lanes.OCTETS,),
    deals="depth",
    m_side="static",
)


@dataclass(frozen=True)
class Planning:
    """Which choices the planners have."""

    schedule: bool = True  # else a barrier after every statement
    memory: bool = True  # else nothing shares bytes
    arch: str = "sm_90a"


PLANNED = Planning()


@lru_cache(maxsize=64)
def _layouts(graph: Graph, arch: str) -> Layouts:
    return layouts(graph, Setup(target(arch), offered=WRITTEN))


def planned(program: TileProgram, graph: Graph, planning: Planning) -> TileProgram:
    """Return the program with what the planners choose for it."""
    _layouts(graph, planning.arch)
    made = _scheduled(program, planning)
    loop, after = made.order
    meetings = {s.out: s for s in program.meetings}
    late = [found for epoch in after if (found := [t for t in epoch if t in meetings])]
    first = {epoch[0] for epoch in after[1:] if epoch}  # behind a barrier
    # A barrier at the end of a pass stands at the beginning of the next.
    goes_round = len(loop) > 1 and not loop[-1]
    return replace(
        program,
        loop=(*program.loads, *_ordered(_computed(program), loop, goes_round)),
        meetings=_ordered(program.meetings, late, made.entry[1]),
        stages=tuple(
            replace(s, statements=_after_barrier(s.statements, f"stage {s.dim}" in first))
            for s in program.stages
        ),
        products=tuple(replace(p, barrier=p.out in first) for p in program.products),
        epilogue=_after_barrier(program.epilogue, made.barriers(1) > 0 or made.entry[1]),
        sharing=planning.memory,
    )


def _computed(program: TileProgram) -> tuple[Statement, ...]:
    return tuple(s for s in program.loop if s.do is not Do.LOAD)


def _scheduled(program: TileProgram, planning: Planning) -> Schedule:
    """Return the schedule of the loop's statements, and of what follows.

    Warps read nothing but their own slices, hence no barrier in the loop; what meets lies where
    the ring was, if bytes are shared; and the epilogue, one task, reads the sums of all warps.
    """
    computed = _computed(program)
    stages = {f"stage {stage.dim}": stage for stage in program.stages}
    products = [s.out for s in program.products]
    after = (*(s.out for s in program.meetings), *stages, *products, _EPILOGUE)
    sums = {m.args[0] for m in program.meetings}
    sections = (
        Section(tuple(_task(s) for s in computed), loop=True),
        Section(after),
    )
    if not planning.schedule:
        return barrier_everywhere(sections)
    edges = [Edge(_task(a), _task(b)) for a in computed for b in computed if a.out in b.args]
    edges += [Edge(_task(s), s.out) for s in computed if s.out in sums]
    edges += [
        Edge(m.out, task, barrier=True) for m in program.meetings for task in (*stages, _EPILOGUE)
    ]
    edges += [Edge(stage, p, barrier=True) for stage in stages for p in products]
    edges += [Edge(p, _EPILOGUE, barrier=True) for p in products]
    if planning.memory:
        reads = [_task(s) for s in computed if set(s.args) & {x.out for x in program.loads}]
        edges += [Edge(r, m.out, barrier=True) for r in reads for m in program.meetings]
    return schedule(sections, edges)


_EPILOGUE = "epilogue"


def _task(statement: Statement) -> str:
    """Return a loop statement's task: a sum and where its parts meet have one name."""
    return f"loop {statement.out}"


def _ordered(
    statements: Iterable[Statement], order: Sequence[Sequence[str]], entry: bool
) -> tuple[Statement, ...]:
    """Return statements by epoch, a barrier before the first of each; of the first at `entry`."""
    by_task = {name: s for s in statements for name in (_task(s), s.out)}
    return tuple(
        replace(by_task[task], barrier=j == 0 and (i > 0 or entry))
        for i, epoch in enumerate(order)
        for j, task in enumerate(epoch)
    )


def _after_barrier(statements: Sequence[Statement], waits: bool) -> tuple[Statement, ...]:
    first, *rest = statements
    return (replace(first, barrier=waits), *rest)
