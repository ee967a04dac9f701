"""Layouts: for every value of a kernel its place, layout and copy instruction, by a 0/1 program.

The implementations of all operators (`implementations.py`) and the conversions between layouts
(`conversions.py`) have costs in cycles (`instruction_costs.py`, `hardware.py`) and are chosen
together (`integer_program.py`). Tensors in device memory lie as their types say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.blocks import Block, blocks_of, default_sizes
from mirage_kernels.generator.plan.conversions import conversions
from mirage_kernels.generator.plan.implementations import Implementations, Offered
from mirage_kernels.generator.plan.instruction_costs import InstructionCosts
from mirage_kernels.generator.plan.integer_program import Problem, Solution, solve
from mirage_kernels.generator.plan.layouts import ValueLayout
from mirage_kernels.generator.target import Target

EVERYTHING = Offered()


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


def plan_layouts(graph: Graph, setup: Setup) -> tuple[LayoutPlan, ...]:
    """Return the cheapest layouts of the values of each kernel of a muGraph.

    Raises PlanError, with the operator and what it lacks, where what is offered does not suffice.
    """
    sizes = default_sizes(graph) if setup.sizes is None else setup.sizes
    blocks = blocks_of(graph, sizes, warps=setup.warps, on=setup.on)
    return tuple(LayoutPlan(b, solve(problem_of(b, setup.offered))) for b in blocks)


def problem_of(block: Block, offered: Offered) -> Problem:
    """Return the 0/1 problem of a kernel's layouts."""
    rules = Implementations(block, offered)
    operators = {n.name: rules.of(n) for n in block.body.nodes}
    wanted: dict[str, list[ValueLayout]] = {}
    for value, layout in chain(*(i.needs for made in operators.values() for i in made)):
        wanted.setdefault(value, []).append(layout)
    converted = (
        conversions(block, value, made, wanted.get(value, [])) for value, made in rules.made.items()
    )
    hw, passes = block.hardware, block.steps * block.rounds
    return Problem(
        operators,
        tuple(chain(*converted)),
        InstructionCosts(block).tensors(),
        hw.registers_per_thread,
        block.on.shared_bytes,
        hw.spilled_cycles * passes * block.warps * hw.simple_cycles,
        # Shared memory that is not there costs more than any traffic: the last resort.
        beyond_cycles=100.0 * passes,
    )
