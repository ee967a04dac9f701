"""What a block does under given layouts, as tasks to schedule and buffers to place.

A task is an operator, a copy into shared memory, the wait for it, a store or a load. Threads that
read what others wrote need a barrier between, unless it is their own warp's slice or an mbarrier
tells them; so do those that write anew what others have read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mirage_kernels.generator.ir import Phase
from mirage_kernels.generator.plan.barriers import Edge, Schedule, Section
from mirage_kernels.generator.plan.blocks import Block
from mirage_kernels.generator.plan.forms import Stored
from mirage_kernels.generator.plan.integer_program import Held, Way
from mirage_kernels.generator.plan.layouts import Layouts
from mirage_kernels.generator.plan.memory import Buffer

PHASES = tuple(Phase)


@dataclass(frozen=True)
class Area:
    """A value's bytes of shared memory: who writes and who reads them, how often they are there."""

    name: str
    bytes: int
    writes: str
    reads: tuple[str, ...]
    ring: bool  # one per stage


@dataclass
class Steps:
    """The tasks of one block by phase, the edges between them, and the shared memory in use."""

    block: Block
    tasks: dict[Phase, list[str]] = field(default_factory=lambda: {p: [] for p in PHASES})
    edges: list[Edge] = field(default_factory=list)
    areas: list[Area] = field(default_factory=list)

    @property
    def sections(self) -> tuple[Section, ...]:
        """Return the phases as sections to schedule."""
        return tuple(Section(tuple(self.tasks[p]), p is Phase.LOOP) for p in PHASES)

    def reusing(self) -> list[Edge]:
        """Return edges that let what comes after the loop lie where the loop's values were."""
        looped = [r for a in self.areas if a.writes in self.tasks[Phase.LOOP] for r in a.reads]
        late = [a.writes for a in self.areas if a.writes in self.tasks[Phase.AFTER]]
        return [Edge(read, write, barrier=True) for read in looped for write in late]

    def buffers(self, made: Schedule, stages: int) -> list[Buffer]:
        """Return the shared memory of a schedule; `stages` copies of what a loop streams."""
        found = []
        for area in self.areas:
            loop = area.writes in self.tasks[Phase.LOOP]
            times = [made.epochs[t] for t in (area.writes, *area.reads)]
            live = set(range(min(times), max(times) + 1))
            stretch = made.stretch(PHASES.index(Phase.LOOP))
            if area.ring:
                live |= set(stretch)
            elif loop and stretch[-1] in live:  # the next pass begins in the same epoch
                live.add(stretch[0])
            size = area.bytes * (stages if area.ring else 1)
            found.append(Buffer(area.name, size, frozenset(live)))
        return found

    @property
    def streamed_bytes(self) -> int:
        """Bytes that one pass copies."""
        return sum(a.bytes for a in self.areas if a.ring)


def steps_of(layouts: Layouts, block: Block) -> Steps:
    """Return the tasks of a kernel under its layouts."""
    return _Builder(layouts, block).run()


class _Builder:
    def __init__(self, layouts: Layouts, block: Block) -> None:
        self.block, self.steps = block, Steps(block)
        self.ways = layouts.solution.ways
        self.moves = [m for m in layouts.solution.moves if m.kernel == block.index]
        self.providers: dict[Held, str] = {}

    def run(self) -> Steps:
        for node in self.block.body.nodes:
            way = self.ways[self.block.held(node.name)]
            staged = next(self.staged(way), None) if node.op == "input" else None
            if staged is None:
                self.operator(node.name, way)
            else:
                self.copy(node.name, staged)
            self.own_moves(node.name)
        loop = self.steps.tasks[Phase.LOOP]
        loop.sort(key=lambda t: (not t.startswith("wait "), not t.startswith("copy ")))
        return self.steps

    def staged(self, way: Way) -> Iterator[Stored]:
        return (f for _, f in way.makes if isinstance(f, Stored) and f.copy is not None)

    def task(self, name: str, value: str, needs: Iterable[Held]) -> str:
        """Add a task to its value's phase, after those that give it what it needs."""
        self.steps.tasks[self.block.phases[value]].append(name)
        for held in needs:
            if held in self.providers:
                waits = isinstance(held[1], Stored) and self.waits(held[1])
                self.steps.edges.append(Edge(self.providers[held], name, waits))
        return name

    def waits(self, stored: Stored) -> bool:
        """Say whether readers of an area need a barrier behind its writers."""
        return not (stored.slice or (stored.copy is not None and stored.copy.tracked))

    def provide(self, way: Way, task: str) -> None:
        for held in way.makes:
            self.providers[held] = task

    def operator(self, value: str, way: Way) -> None:
        self.provide(way, self.task(value, value, way.needs))

    def copy(self, value: str, stored: Stored) -> None:
        looped = self.block.phases[value] is Phase.LOOP
        copy = self.task(f"copy {value}", value, ())
        wait = self.task(f"wait {value}", value, ())
        if not looped:  # in a loop the wait is for the copy of an earlier pass
            self.steps.edges.append(Edge(copy, wait))
        self.providers[self.block.held(value), stored] = wait
        width = self.block.width(value)
        self.area(value, copy, stored, (self.block.tile.shared_bytes(stored, width), looped))

    def area(self, value: str, writer: str, stored: Stored, size: tuple[int, bool]) -> None:
        """Add the shared memory of a value; `size` = its bytes, and whether there is a ring."""
        held = (self.block.held(value), stored)
        users = [m for m in self.moves if held in m.needs]
        reads = tuple(self.reader(value, m) for m in users)
        self.steps.areas.append(Area(value, size[0], writer, reads, size[1]))
        if self.block.phases[value] is Phase.LOOP and self.waits(stored):
            again = (Edge(r, writer, barrier=True, distance=1) for r in reads)
            self.steps.edges.extend(again)

    def reader(self, value: str, move: Way) -> str:
        goals = [m for m in self.moves if m.needs[0][0] == self.block.held(value)]
        number = goals.index(move)
        return f"load {value}" + (f" {number}" if number else "")

    def own_moves(self, value: str) -> None:
        """Add the moves of a value: stores before loads."""
        mine = [m for m in self.moves if m.needs[0][0] == self.block.held(value)]
        for move in sorted(mine, key=lambda m: isinstance(m.needs[0][1], Stored)):
            source, target = move.needs[0][1], move.makes[0][1]
            if isinstance(target, Stored):
                self.store(value, move, target)
            else:
                turned = not isinstance(source, Stored)
                name = f"turn {value}" if turned else self.reader(value, move)
                self.provide(move, self.task(name, value, move.needs))

    def store(self, value: str, move: Way, target: Stored) -> None:
        name = self.task(f"store {value}", value, move.needs)
        self.provide(move, name)
        width = 4 if target.parts else self.block.width(value)
        size = self.block.tile.shared_bytes(target, width)
        self.area(value, name, target, (size, False))
