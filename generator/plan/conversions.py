"""How a value gets from the form it is made in to the forms it is wanted in.

registers -> shared -> registers   written by all threads, read by others: a barrier between
parts in every warp -> shared      side by side, added up by whoever reads them
shared -> registers                a staged tile; a barrier unless every warp reads its own
                                   slice or an mbarrier tells of the copy
pairs [a | b] -> pairs [b | a]     movmatrix, inside the warp
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from mirage_kernels.generator.ir import Phase
from mirage_kernels.generator.plan.blocks import Block
from mirage_kernels.generator.plan.forms import (
    UNIFORM,
    Form,
    Fragment,
    Lanes,
    Place,
    Stored,
    Swizzle,
)
from mirage_kernels.generator.plan.instruction_costs import Prices
from mirage_kernels.generator.plan.integer_program import Way, Work


class Moves:
    """The moves of one block's values."""

    def __init__(self, block: Block, depths: dict[str, int]) -> None:
        self.block, self.depths, self.prices = block, depths, Prices(block)

    def of(self, value: str, made: Iterable[Form], wanted: Iterable[Form]) -> Iterator[Way]:
        """Yield every move that may be of use for a value made and wanted in these forms."""
        goals = [f for f in dict.fromkeys(wanted) if isinstance(f, Fragment) and f != UNIFORM]
        forms = list(dict.fromkeys(made))
        staged = [f for f in forms if isinstance(f, Stored) and f.place is Place.SHARED]
        held = [f for f in forms if isinstance(f, Fragment)]
        stores: dict[Stored, None] = {}
        for form in held:
            if any(goal != form for goal in goals):
                for stored in self.places(form):
                    stores[stored] = None
                    yield self.store(value, form, stored)
            yield from self.transposed(value, form, goals)
        for stored in (*staged, *stores):
            for goal in goals:
                if self.readable(stored, goal):
                    yield self.load(value, stored, goal)

    def places(self, form: Fragment) -> list[Stored]:
        """Return how a fragment may lie in shared memory: either group of dims the faster one."""
        orders = dict.fromkeys((form.rows + form.cols, form.cols + form.rows))
        return [
            Stored(Place.SHARED, order, Swizzle.PADDED, parts=form.pending)
            for order in orders
            if form.lanes is not Lanes.SPREAD or order == form.rows
        ]

    def readable(self, stored: Stored, goal: Fragment) -> bool:
        """Say whether a stored tile can be read as a fragment.

        What a warp keeps to itself only that warp reads; parts are added up by whoever reads.
        """
        if goal.pending or set(stored.order) != set(goal.rows + goal.cols):
            return False
        return not stored.slice or stored.slice == goal.split

    def width(self, value: str, stored: Stored) -> int:
        """Return the size of a stored element: partial sums are fp32 whatever becomes of them."""
        return 4 if stored.parts else self.block.width(value)

    def move(self, value: str, source: Form, target: Form, work: Work) -> Way:
        name = f"{value}: {source} -> {target}"
        needs, makes = (self.block.held(value), source), (self.block.held(value), target)
        return Way(name, self.block.index, (needs,), (makes,), work, is_move=True)

    def store(self, value: str, form: Fragment, stored: Stored) -> Way:
        width = self.width(value, stored)
        work = self.prices.often(value, self.prices.stores(form, stored, width))
        in_loop = self.block.phases[value] is Phase.LOOP
        held = self.block.tile.shared_bytes(stored, width) if in_loop else 0
        way = self.move(value, form, stored, work + Work(shared_bytes=held))
        return replace(way, latencies=self.late(value), first_hand=True)

    def load(self, value: str, stored: Stored, goal: Fragment) -> Way:
        width = self.width(value, stored)
        work = self.prices.often(value, self.prices.loads(goal, stored, width))
        registers = self.block.tile.registers(goal, width) if stored.copy else 0
        way = self.move(value, stored, goal, work + Work(registers=registers))
        waits = stored.copy is not None and not stored.slice and not stored.copy.tracked
        latencies = (self.arrival(value),) if waits else ()
        return replace(way, latencies=latencies)

    def transposed(self, value: str, form: Fragment, goals: list[Fragment]) -> Iterator[Way]:
        if form.lanes is not Lanes.PAIRS or self.block.width(value) != 2 or form.pending:
            return
        turned = Fragment(Lanes.PAIRS, form.cols, form.rows, form.split)
        if form.rows and form.cols and turned in goals:
            work = self.prices.often(value, self.prices.transpose(form))
            way = self.move(value, form, turned, work)
            yield replace(way, first_hand=True)

    def late(self, value: str) -> tuple[str, ...]:
        """Return the barrier behind the stores of a value's depth: values of one depth share it."""
        phase = self.block.phases[value]
        return (f"{self.block.index} {phase.name} {self.depths[value]}",)

    def arrival(self, value: str) -> str:
        """Return the barrier behind the copies of a pass."""
        return f"{self.block.index} {self.block.phases[value].name} copies"
