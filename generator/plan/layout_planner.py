"""Layouts: for every value of a muGraph its place, layout and copy instruction, by a 0/1 program.

The implementations of all operators (`implementations.py`) and the conversions between layouts
(`conversions.py`) have costs in cycles (`instruction_costs.py`, `hardware.py`) and are chosen
together (`integer_program.py`). Tensors that come from outside or leave lie as they are given;
those between two kernels lie in whatever order suits both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.blocks import Block, blocks_of, default_sizes
from mirage_kernels.generator.plan.conversions import conversions
from mirage_kernels.generator.plan.implementations import Implementations, Offered
from mirage_kernels.generator.plan.instruction_costs import InstructionCosts
from mirage_kernels.generator.plan.integer_program import (
    Implementation,
    Kernel,
    Problem,
    Solution,
    solve,
)
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
    """The layouts of all values, by kernel and value."""

    blocks: tuple[Block, ...]
    solution: Solution

    @property
    def cycles(self) -> float:
        """Predicted cycles, launches left out."""
        return self.solution.cycles

    def layouts(self, block: Block, value: str) -> tuple[ValueLayout, ...]:
        """Return every layout that a value takes, in the order in which it takes them."""
        name = block.qualified(value)
        made = (layout for i in self.solution.all for held, layout in i.makes if held == name)
        return tuple(dict.fromkeys(made))

    def m_side(self, block: Block, product: str) -> str:
        """Return the operand of a product that takes the M side of the tensor cores."""
        operand, _ = self.solution.operators[block.qualified(product)].needs[0]
        args = block.body.producers[product].args
        return next(a for a in args if block.qualified(a) == operand)


def plan_layouts(graph: Graph, setup: Setup) -> LayoutPlan:
    """Return the cheapest layouts of a muGraph's values.

    Raises PlanError, with the operator and what it lacks, where what is offered does not suffice.
    """
    blocks, problem = problem_of(graph, setup)
    return LayoutPlan(blocks, solve(problem))


def problem_of(graph: Graph, setup: Setup) -> tuple[tuple[Block, ...], Problem]:
    """Return the kernels of a muGraph and the 0/1 problem of their layouts."""
    sizes = default_sizes(graph) if setup.sizes is None else setup.sizes
    blocks = blocks_of(graph, sizes, warps=setup.warps, on=setup.on)
    orders = dict(_intermediates(graph, blocks))
    operators: dict[str, tuple[Implementation, ...]] = {}
    converted: list[Implementation] = []
    for block in blocks:
        rules = Implementations(block, setup.offered, orders)
        found = {n.name: rules.of(n) for n in block.body.nodes}
        operators |= {block.qualified(name): made for name, made in found.items()}
        wanted: dict[str, list[ValueLayout]] = {}
        for held, layout in chain(*(i.needs for made in found.values() for i in made)):
            wanted.setdefault(held, []).append(layout)
        for name, made in rules.made.items():
            goals = wanted.get(block.qualified(name), [])
            converted += conversions(block, name, made, goals)
    kernels = {block.index: _kernel(block) for block in blocks}
    return tuple(blocks), Problem(operators, tuple(converted), kernels)


def _intermediates(
    graph: Graph, blocks: list[Block]
) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield each tensor between two kernels with orders that differ in which dim is the fast one.

    The order of its type comes first.
    """
    for block in blocks:
        for tensor in (v.name for v in block.node.outs):
            names = graph.values[tensor].type.names
            if names and tensor not in graph.outputs:
                lasts = (*names[-1:], *names[:-1])
                yield tensor, [(*(n for n in names if n != last), last) for last in lasts]


def _kernel(block: Block) -> Kernel:
    hw, passes = block.hardware, block.steps * block.rounds
    return Kernel(
        InstructionCosts(block).tensors(),
        hw.registers_per_thread,
        block.on.shared_bytes,
        hw.spilled_cycles * passes * block.warps * hw.simple_cycles,
        # Shared memory that is not there costs more than any traffic: the last resort.
        beyond_cycles=100.0 * passes,
    )
