"""Layouts: for every value of a kernel its place, layout and copy instruction, by a 0/1 program.

The implementations of all operators and the conversions between layouts (`implementations.py`) have
costs in cycles (`costs.py`, `hardware.py`) and are chosen together (`integer_program.py`).
Tensors in device memory lie as their types say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from mirage_kernels.generator.errors import PlanError
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
    """What layouts are planned for beside the muGraph; no sizes: `default_sizes`."""

    on: Target
    sizes: Mapping[str, int] | None = None
    warps: int = 8
    offered: Offered = EVERYTHING


@dataclass(frozen=True)
class LayoutPlan:
    """The layouts of all values of a kernel."""

    block: Block
    solution: Solution

    def layouts(self, value: str) -> tuple[ValueLayout, ...]:
        """Return every layout that a value takes, in the order in which it takes them."""
        converted = (c.makes for c in self.solution.conversions if c.value == value)
        return (*self.solution.operators[value].makes, *chain(*converted))

    def m_side(self, product: str) -> str:
        """Return the operand of a product that takes the M side of the tensor cores."""
        return self.solution.operators[product].needs[0][0]


@lru_cache(maxsize=64)
def require_layouts(graph: Graph, arch: str) -> None:
    """Raise PlanError for a muGraph whose values have no layouts that csrc/tile can run."""
    plan_layouts(graph, Setup(target(arch), offered=WRITTEN))


def plan_layouts(graph: Graph, setup: Setup) -> tuple[LayoutPlan, ...]:
    """Return the cheapest layouts of the values of each kernel of a muGraph.

    Raises PlanError, with the operator and what it lacks, where what is offered does not suffice.
    """
    blocks = blocks_of(graph, setup)
    if not blocks:
        raise PlanError("the muGraph has no kernel of its own, there is nothing to plan")
    return tuple(LayoutPlan(b, solve(problem_of(b, setup.offered))) for b in blocks)


def blocks_of(graph: Graph, setup: Setup) -> list[Block]:
    """Return the kernels of a muGraph."""
    types = {name: value.type for name, value in graph.values.items()}
    sizes = default_sizes(graph) if setup.sizes is None else setup.sizes
    return [
        Block(node, without_threads(node.body), types, sizes, setup.warps, setup.on)
        for node in graph.blocks
        if node.body is not None
    ]


def default_sizes(graph: Graph) -> dict[str, int]:
    """Return extents to plan for: dims as large as they get, but one tile of dynamic grid dims."""
    dims = [d for v in graph.values.values() for d in v.type.dims]
    sizes = {d.name: d.size for d in dims}
    dynamic = {d.name for d in dims if d.dynamic}
    for node in graph.blocks:
        assert node.body is not None
        assert node.body.space is not None
        for axis in node.body.space.grid:
            if axis.dim in dynamic and not axis.reduced:
                sizes[axis.dim] = min(sizes[axis.dim], axis.tile)
    return sizes


def problem_of(block: Block, offered: Offered) -> Problem:
    """Return the 0/1 problem of a kernel's layouts."""
    rules = Implementations(block, offered)
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
