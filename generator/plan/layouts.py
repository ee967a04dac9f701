"""Layouts: for every value of a muGraph its place, layout and copy, by a 0/1 program.

The implementations of all operators (`implementations.py`) and the layout conversions between forms
(`conversions.py`) have costs in cycles (`instruction_costs.py`, `hardware.py`) and are chosen
together (`integer_program.py`). Tensors that come from outside or leave have the layout they are
given in; those between two kernels take whatever suits both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from mirage_kernels.generator.ir import Graph, Phase
from mirage_kernels.generator.plan.blocks import Block, blocks_of, default_sizes
from mirage_kernels.generator.plan.conversions import Moves
from mirage_kernels.generator.plan.forms import Form, Place, Stored
from mirage_kernels.generator.plan.implementations import Offered, Ways
from mirage_kernels.generator.plan.instruction_costs import Prices
from mirage_kernels.generator.plan.integer_program import (
    Limits,
    Problem,
    Solution,
    Way,
    solve,
)
from mirage_kernels.generator.plan.prune import pruned
from mirage_kernels.generator.target import Target

WARPS = 8
EVERYTHING = Offered()


@dataclass(frozen=True)
class Setup:
    """What layouts are planned for beside the muGraph; no sizes: `default_sizes`."""

    on: Target
    sizes: Mapping[str, int] | None = None
    warps: int = WARPS
    offered: Offered = EVERYTHING


@dataclass(frozen=True)
class Layouts:
    """The forms of all values: `forms` by kernel (its place in the graph) and value."""

    blocks: tuple[Block, ...]
    problem: Problem
    solution: Solution

    @property
    def cycles(self) -> float:
        """Predicted cycles, launches left out."""
        return self.solution.cycles

    def forms(self, block: Block, value: str) -> tuple[Form, ...]:
        """Return every form that a value takes, in the order in which it takes them."""
        name = block.held(value)
        made = (form for way in self.solution.all for held, form in way.makes if held == name)
        return tuple(dict.fromkeys(made))

    def device(self, tensor: str) -> Stored | None:
        """Return how a tensor lies in device memory, None if no kernel of ours touches it."""
        for way in self.solution.all:
            for held, form in (*way.makes, *way.needs):
                if held == tensor and isinstance(form, Stored):
                    return form
        return None

    def m_side(self, block: Block, product: str) -> str:
        """Return the operand of a product that takes the M side of the tensor cores."""
        held, _ = self.solution.ways[block.held(product)].needs[0]
        return next(a for a in block.body.producers[product].args if block.held(a) == held)

    def describe(self) -> dict[str, list[str]]:
        """Return every value's forms as words."""
        return {
            block.held(v.name): [str(f) for f in self.forms(block, v.name)]
            for block in self.blocks
            for n in block.body.nodes
            for v in n.outs
            if n.op != "output"
        }


def layouts(graph: Graph, setup: Setup) -> Layouts:
    """Return the cheapest layouts of a muGraph's values.

    Raises PlanError where what is offered does not suffice.
    """
    blocks, problem = problem_of(graph, setup)
    return Layouts(blocks, problem, solve(pruned(problem)))


def problem_of(graph: Graph, setup: Setup) -> tuple[tuple[Block, ...], Problem]:
    """Return the kernels of a muGraph and the 0/1 problem of their layouts."""
    sizes = default_sizes(graph) if setup.sizes is None else setup.sizes
    blocks = blocks_of(graph, sizes, warps=setup.warps, on=setup.on)
    devices = _devices(graph, blocks)
    items: dict[str, tuple[Way, ...]] = {
        tensor: tuple(
            Way(tensor, blocks[0].index, (), ((tensor, form),)) for form in devices[tensor]
        )
        for tensor in devices
        if graph.producers[tensor].op != "block"
    }
    moves: list[Way] = []
    for block in blocks:
        ways = Ways(block, setup.offered, devices)
        made = {n.name: ways.of(n) for n in block.body.nodes}
        items |= {block.held(name): found for name, found in made.items()}
        moves += _moves(block, ways, made)
    everything = (*chain.from_iterable(items.values()), *moves)
    base = {b.index: Prices(b).base() for b in blocks}
    latencies = {x: _latency(x, blocks) for w in everything for x in w.latencies}
    problem = Problem(items, tuple(moves), latencies, _limits(blocks[0]), base)
    return tuple(blocks), problem


def _moves(block: Block, ways: Ways, made: Mapping[str, tuple[Way, ...]]) -> list[Way]:
    moves = Moves(block, depths_of(block))
    wanted: dict[str, list[Form]] = {}
    for way in chain.from_iterable(made.values()):
        for held, form in way.needs:
            wanted.setdefault(held, []).append(form)
    return [
        move
        for name in made
        if block.body.producers[name].op != "output"
        for move in moves.of(name, ways.made[name], wanted.get(block.held(name), []))
    ]


def depths_of(block: Block) -> dict[str, int]:
    """Return for each value the operators of its phase on the longest path to it."""
    depths: dict[str, int] = {}
    phases = block.phases
    for node in block.body.nodes:
        same = (depths[a] for a in node.args if phases[a] is phases[node.name])
        depth = 1 + max(same, default=-1)
        depths |= {v.name: depth for v in node.outs}
    return depths


def _devices(graph: Graph, blocks: Iterable[Block]) -> dict[str, tuple[Stored, ...]]:
    """Return how each tensor of our kernels may lie in device memory."""
    outside = {n.name for n in graph.inputs} | set(graph.outputs)
    found: dict[str, tuple[Stored, ...]] = {}
    for block in blocks:
        for tensor in (*block.node.args, *(v.name for v in block.node.outs)):
            names = graph.values[tensor].type.names
            orders = [names] if tensor in outside else _orders(names)
            if names:
                found[tensor] = tuple(Stored(Place.DEVICE, order) for order in orders)
    return found


def _orders(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the orders that differ in which dim is the fast one; the given one first."""
    lasts = (*names[-1:], *names[:-1])
    return [(*(n for n in names if n != last), last) for last in lasts]


def _latency(name: str, blocks: Iterable[Block]) -> float:
    """Return the cycles of a latency, by its name: kernel, phase or kind, and which."""
    kernel, kind, which = name.split(" ", 2)
    block = next(b for b in blocks if b.index == int(kernel))
    f = block.facts
    each = {
        "cluster": 2 * f.cluster_cycles,
        "device": block.on.launch_us * f.cycles_per_us,
        "exposed": f.exposed_cycles,
    }
    passes = block.steps if kind == Phase.LOOP.name else 1
    return each.get(kind, each.get(which, f.barrier_cycles)) * passes * block.rounds


def _limits(block: Block) -> Limits:
    f = block.facts
    passes = block.steps * block.rounds * block.warps
    # Shared memory that is not there costs more than any traffic: such layouts are a last resort.
    return Limits(
        f.registers_per_thread,
        block.on.shared_bytes,
        f.spilled_cycles * passes * f.simple_cycles,
        beyond_cycles=100.0 * block.steps * block.rounds,
    )
