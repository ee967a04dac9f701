"""Layouts: for every value of a kernel its place, layout and copy instruction, by a 0/1 program.

The implementations of all operators and the conversions between layouts (`implementations.py`) have
costs in cycles (`costs.py`, `hardware.py`) and are chosen together (`integer_program.py`).
Tensors in device memory lie as their types say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.costs import Block
from mirage_kernels.generator.plan.implementations import Implementations, Offered
from mirage_kernels.generator.plan.integer_program import Problem, Solution, solve
from mirage_kernels.generator.plan.layouts import Copy, Lanes, Swizzle, ValueLayout
from mirage_kernels.generator.plan.threads import without_threads
from mirage_kernels.generator.target import Target, target

EVERYTHING = Offered()
# What csrc/tile can run: each warp's own part of a tile, the weights on the M side of the tensor
# cores, in 16-byte vectors from swizzled stages. `tests/plan/test_layouts.py` checks that nothing
# else would be cheaper.
WRITTEN = Offered(
    copies=(Copy.CP_ASYNC, Copy.PLAIN),
    swizzles=(Swizzle.HALVES,),
    per_warp=(True,),
    lanes=(Lanes.VECTORS,),
    any_warp_dim=False,
    any_m_side=False,
)


@dataclass(frozen=True)
class Setup:
    """What layouts are planned for beside the muGraph."""

    on: Target
    warps: int = 8
    offered: Offered = EVERYTHING


@lru_cache(maxsize=64)
def require_layouts(graph: Graph, arch: str) -> None:
    """Raise PlanError for a muGraph whose values have no layouts that csrc/tile can run."""
    plan_layouts(graph, Setup(target(arch), offered=WRITTEN))


def plan_layouts(graph: Graph, setup: Setup) -> Solution:
    """Return the cheapest layouts of the values of a muGraph with one kernel.

    Raises PlanError, with the operator and what it lacks, where what is offered does not suffice.
    """
    return solve(problem_of(graph, setup))


def problem_of(graph: Graph, setup: Setup) -> Problem:
    """Return the 0/1 problem of the layouts of a muGraph's kernel."""
    (node,) = graph.blocks
    assert node.body is not None
    assert node.body.space is not None
    types = {name: value.type for name, value in graph.values.items()}
    # Dims as large as they get, but one tile of dynamic grid dims.
    dims = {d.name: d for t in types.values() for d in t.dims}
    sizes = {name: d.size for name, d in dims.items()}
    for axis in node.body.space.grid:
        if dims[axis.dim].dynamic and not axis.reduced:
            sizes[axis.dim] = min(sizes[axis.dim], axis.tile)
    block = Block(node, without_threads(node.body), types, sizes, setup.warps, setup.on)
    rules = Implementations(block, setup.offered)
    operators = {n.name: rules.of(n) for n in block.body.nodes}
    wanted: dict[str, list[ValueLayout]] = {}
    for value, layout in chain(*(i.needs for made in operators.values() for i in made)):
        wanted.setdefault(value, []).append(layout)
    hw, passes = block.hardware, block.passes
    return Problem(
        operators,
        tuple(chain(*(rules.conversions(v, wanted.get(v, [])) for v in rules.made))),
        block.traffic(),
        hw.registers_per_thread,
        block.on.shared_bytes,
        hw.spilled_cycles * passes * block.warps * hw.simple_cycles,
        # Shared memory that is not there costs more than any traffic: the last resort.
        beyond_cycles=100.0 * passes,
    )
