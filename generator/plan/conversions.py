"""Layout conversions: how a value gets from the layout it is made in to one that is wanted.

shared -> registers              a staged tile; a barrier unless each warp reads its own part or an
                                 mbarrier reports the copy
registers -> shared -> registers stored by all threads, read by others: a barrier between; partial
                                 sums of warps lie side by side and are added up by the readers
[a | b] -> [b | a] of mma        movmatrix, inside the warp
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mirage_kernels.generator.plan.blocks import Block
from mirage_kernels.generator.plan.instruction_costs import Cost, InstructionCosts
from mirage_kernels.generator.plan.integer_program import Implementation, Latency
from mirage_kernels.generator.plan.layouts import (
    Fragment,
    Lanes,
    Place,
    Stored,
    Swizzle,
    ValueLayout,
)


def conversions(
    block: Block, value: str, made: Iterable[ValueLayout], wanted: Iterable[ValueLayout]
) -> Iterator[Implementation]:
    """Yield every conversion of a value from a layout it may be made in to one that is wanted.

    A maximum that each warp has of its own stays so inside the loop: all users see the same one.
    """
    convert = _Conversions(block, value)
    goals = [goal for goal in dict.fromkeys(wanted) if isinstance(goal, Fragment)]
    for source in dict.fromkeys(made):
        for goal in goals:
            if goal.partial or goal == source:
                continue
            if isinstance(source, Stored):
                yield from convert.load(source, goal)
            elif not (source.partial in block.maximum_dims[value] and block.looped(value)):
                yield from convert.transpose(source, goal)
                yield convert.exchange(source, goal)


class _Conversions:
    def __init__(self, block: Block, value: str) -> None:
        self.block, self.value, self.width = block, value, block.width(value)
        self.costs, self.tile = InstructionCosts(block), block.tile

    def conversion(
        self, layouts: tuple[ValueLayout, ValueLayout], cost: Cost, held: Cost, *waits: Latency
    ) -> Implementation:
        (source, goal), cost = layouts, cost.times(self.block.times(self.value)) + held
        return Implementation(self.value, ((self.value, source),), (goal,), cost, waits)

    def barrier(self, after: object) -> Latency:
        """Return a barrier of the loop or around it; values of one depth share theirs."""
        cycles = self.block.hardware.barrier_cycles * self.block.times(self.value)
        return (f"barrier after {after}, {self.block.phases[self.value].value}", cycles)

    def load(self, stored: Stored, goal: Fragment) -> Iterator[Implementation]:
        same_dims = set(stored.order) == set(goal.dims)
        own_part = not stored.warp_dim or stored.warp_dim == goal.warp_dim
        if stored.place is not Place.SHARED or not same_dims or not own_part:
            return
        cost = self.costs.load(goal, stored, self.width)
        waits = not stored.warp_dim and not (stored.copy and stored.copy.tracked)
        barriers = [self.barrier("copies")] if waits else []
        held = Cost(registers=self.tile.registers(goal, self.width))
        yield self.conversion((stored, goal), cost, held, *barriers)

    def exchange(self, source: Fragment, goal: Fragment) -> Implementation:
        """Return the conversion through shared memory, rows or columns the faster dims there."""
        width = 4 if source.partial else self.width  # partial sums are fp32
        orders = dict.fromkeys((source.dims, source.cols + source.rows))
        stored = [
            Stored(Place.SHARED, order, Swizzle.PADDED, partial=source.partial) for order in orders
        ]
        costs = [
            self.costs.store(source, s, width) + self.costs.load(goal, s, width) for s in stored
        ]
        cheapest = min(range(len(stored)), key=lambda i: costs[i].shared + costs[i].issue)
        cost, between = costs[cheapest], stored[cheapest]
        bytes_ = self.tile.shared_bytes(between, width) if self.block.looped(self.value) else 0
        depth = self.block.depths[self.value]
        return self.conversion(
            (source, goal), cost, Cost(shared_bytes=bytes_), self.barrier(f"depth {depth}")
        )

    def transpose(self, source: Fragment, goal: Fragment) -> Iterator[Implementation]:
        turned = Fragment(Lanes.MMA, source.cols, source.rows, source.warp_dim)
        two_dims = source.rows and source.cols and not source.partial
        if source.lanes is Lanes.MMA and self.width == 2 and two_dims and goal == turned:
            yield self.conversion((source, goal), self.costs.transpose(source), Cost())
