"""One way for every item, values in the forms that the ways need, at least cost: a 0/1 program.

A problem knows nothing of GPUs. An item is done in exactly one of its ways; a way makes values in
forms and needs others in forms; moves make a value in a form out of another form of it. Kernels
take the time of their busiest resource, plus a tenth of the others' (they overlap, but not free of
charge), plus latencies that nothing hides, each counted once however many need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import PlanError, ToolchainError
from mirage_kernels.generator.plan.forms import Form

if TYPE_CHECKING:
    import pulp

RESOURCES = ("memory", "cache", "shared", "issue", "tensor")
# Share of a resource's time that shows beside a busier one's, as in the cost model.
OVERLAPPED = 0.1
RANK_CYCLES = 1e-3  # per place in the order of an item's ways, and per move: ties go to the first

Held = tuple[str, Form]  # a value in a form


@dataclass(frozen=True)
class Work:
    """Cycles of one multiprocessor by resource, registers and shared memory held all along."""

    cycles: Mapping[str, float] = field(default_factory=dict)
    registers: int = 0  # of a thread
    shared_bytes: int = 0

    def times(self, count: int) -> Work:
        """Return the work of doing it so often; what it holds is held once."""
        cycles = {r: c * count for r, c in self.cycles.items()}
        return Work(cycles, self.registers, self.shared_bytes)

    def __add__(self, other: Work) -> Work:
        names = dict.fromkeys((*self.cycles, *other.cycles))
        cycles = {r: self.cycles.get(r, 0.0) + other.cycles.get(r, 0.0) for r in names}
        return Work(
            cycles, self.registers + other.registers, self.shared_bytes + other.shared_bytes
        )


@dataclass(frozen=True)
class Way:
    """A way to do an item, or a move. `mode` = (a question, its answer): chosen ways must agree."""

    name: str
    kernel: int
    needs: tuple[Held, ...]
    makes: tuple[Held, ...]
    work: Work = field(default_factory=Work)
    latencies: tuple[str, ...] = ()
    mode: tuple[str, str] | None = None
    first_hand: bool = False  # what it needs is made by an item, not by a move
    is_move: bool = False


@dataclass(frozen=True)
class Limits:
    """What a block may hold, and the cycles that going beyond costs (per register, per byte)."""

    registers: int
    shared_bytes: int
    spilled_cycles: float
    beyond_cycles: float


@dataclass(frozen=True)
class Problem:
    """Items with their ways in canonical order, the moves, and what the kernels pay anyhow."""

    items: Mapping[str, tuple[Way, ...]]
    moves: tuple[Way, ...]
    latency_cycles: Mapping[str, float]
    limits: Limits
    base: Mapping[int, Work] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[int, ...]:
        """Numbers of the kernels."""
        ways = (*(w for ways in self.items.values() for w in ways), *self.moves)
        return tuple(sorted({*self.base, *(w.kernel for w in ways)}))


@dataclass(frozen=True)
class Solution:
    """A way for every item, the moves in use, and their cost in cycles."""

    ways: Mapping[str, Way]
    moves: tuple[Way, ...]
    cycles: float

    @property
    def all(self) -> tuple[Way, ...]:
        """Every way in use."""
        return (*self.ways.values(), *self.moves)


def price(problem: Problem, chosen: Sequence[Way]) -> float:
    """Return the cycles of a choice."""
    total = 0.0
    for kernel in problem.kernels:
        mine = [w for w in chosen if w.kernel == kernel]
        work = sum((w.work for w in mine), problem.base.get(kernel, Work()))
        busy = [work.cycles.get(r, 0.0) for r in RESOURCES]
        total += (1 - OVERLAPPED) * max(busy) + OVERLAPPED * sum(busy)
        total += sum(problem.latency_cycles[x] for x in {x for w in mine for x in w.latencies})
        limits = problem.limits
        total += limits.spilled_cycles * max(0, work.registers - limits.registers)
        total += limits.beyond_cycles * max(0, work.shared_bytes - limits.shared_bytes)
    return total


def possible(chosen: Sequence[Way]) -> bool:
    """Say whether every need of a choice is met, and its modes agree."""
    by_items = {h for w in chosen if not w.is_move for h in w.makes}
    made = {h for w in chosen for h in w.makes}
    needs_met = all(set(w.needs) <= (by_items if w.first_hand else made) for w in chosen)
    modes = {w.mode for w in chosen if w.mode}
    return needs_met and len(modes) == len({question for question, _ in modes})


def solve(problem: Problem) -> Solution:
    """Return the cheapest choice; of equally cheap ones the first in the order of the ways.

    Raises PlanError if there is none.
    """
    program = _Program(problem)
    program.minimise(program.cost + RANK_CYCLES * program.rank)
    ways = {i: next(w for w in ways if program.taken(w)) for i, ways in problem.items.items()}
    moves = tuple(m for m in problem.moves if program.taken(m))
    return Solution(ways, moves, price(problem, (*ways.values(), *moves)))


class _Program:
    """The 0/1 program of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.pulp = _pulp()
        self.problem = problem
        self.lp = self.pulp.LpProblem("choose", self.pulp.LpMinimize)
        everything = [w for ways in problem.items.values() for w in ways] + list(problem.moves)
        self.takes = {id(w): self.new(f"x{i}", "Binary") for i, w in enumerate(everything)}
        self.everything = everything
        self.add_ways()
        self.add_modes()
        self.cost = self.pulp.lpSum(self.kernel_cost(k) for k in problem.kernels)
        ranks = [r for ways in problem.items.values() for r in range(len(ways))]
        ranks += [1] * len(problem.moves)
        self.rank = self.pulp.lpSum(
            rank * self.takes[id(w)] for rank, w in zip(ranks, everything, strict=True)
        )

    def take(self, way: Way) -> pulp.LpVariable:
        return self.takes[id(way)]

    def taken(self, way: Way) -> bool:
        return bool(self.take(way).varValue > 0.5)

    def add_ways(self) -> None:
        for ways in self.problem.items.values():
            self.lp += self.pulp.lpSum(self.take(w) for w in ways) == 1
        makers: dict[Held, list[Way]] = {}
        for w in self.everything:
            for held in w.makes:
                makers.setdefault(held, []).append(w)
        for w in self.everything:
            for held in w.needs:
                given = makers.get(held, [])
                if w.first_hand:
                    given = [m for m in given if not m.is_move]
                self.lp += self.take(w) <= self.pulp.lpSum(self.take(m) for m in given)

    def add_modes(self) -> None:
        modes = sorted({w.mode for w in self.everything if w.mode})
        for question in dict.fromkeys(q for q, _ in modes):
            answers = [mode for mode in modes if mode[0] == question]
            said = {m: self.new(f"mode_{modes.index(m)}", "Binary") for m in answers}
            self.lp += self.pulp.lpSum(said.values()) <= 1
            for w in self.everything:
                if w.mode in said:
                    self.lp += self.take(w) <= said[w.mode]

    def new(self, name: str, kind: str = "Continuous") -> pulp.LpVariable:
        return self.lp.add_variable(name, lowBound=0, cat=kind)

    def total(self, ways: Iterable[Way], amounts: Iterable[float]) -> pulp.LpAffineExpression:
        terms = (amount * self.take(w) for w, amount in zip(ways, amounts, strict=True) if amount)
        return self.pulp.lpSum(terms)

    def kernel_cost(self, kernel: int) -> pulp.LpAffineExpression:
        mine = [w for w in self.everything if w.kernel == kernel]
        base = self.problem.base.get(kernel, Work())
        longest, cost = self.new(f"longest_{kernel}"), 0
        for resource in RESOURCES:
            cycles = [w.work.cycles.get(resource, 0.0) for w in mine]
            busy = self.total(mine, cycles) + base.cycles.get(resource, 0.0)
            self.lp += busy <= longest
            cost += OVERLAPPED * busy
        return cost + (1 - OVERLAPPED) * longest + self.held_cost(kernel, mine)

    def held_cost(self, kernel: int, mine: Sequence[Way]) -> pulp.LpAffineExpression:
        """Return the cost of latencies and of holding more than fits."""
        limits, base, cost = self.problem.limits, self.problem.base.get(kernel, Work()), 0
        for i, latency in enumerate(sorted({x for w in mine for x in w.latencies})):
            paid = self.new(f"latency_{kernel}_{i}", "Binary")
            for w in mine:
                if latency in w.latencies:
                    self.lp += self.take(w) <= paid
            cost += self.problem.latency_cycles[latency] * paid
        spilled, beyond = self.new(f"spilled_{kernel}"), self.new(f"beyond_{kernel}")
        registers = self.total(mine, [w.work.registers for w in mine]) + base.registers
        self.lp += registers - limits.registers <= spilled
        held = self.total(mine, [w.work.shared_bytes / 1024 for w in mine])
        self.lp += held + (base.shared_bytes - limits.shared_bytes) / 1024 <= beyond
        cost += limits.spilled_cycles * spilled
        return cost + limits.beyond_cycles * 1024 * beyond

    def minimise(self, expression: pulp.LpAffineExpression) -> None:
        self.lp.setObjective(expression)
        solver = self.pulp.COIN_CMD(
            path=self.pulp.apis.coin_api.pulp_cbc_path,  # the CBC that comes with PuLP 3
            msg=False,
            threads=1,
            gapRel=0.0,
            options=["randomSeed 1", "randomCbcSeed 1"],
        )
        if self.lp.solve(solver) != self.pulp.LpStatusOptimal:
            raise PlanError("no choice of layouts gives every operator its operands")


def _pulp() -> pulp:
    """Return the PuLP module; it is loaded when something is planned, and only then."""
    try:
        import pulp
    except ImportError as missing:
        raise ToolchainError(
            "planning layouts needs PuLP", "`pip install 'mirage-kernels[generate]'` brings it"
        ) from missing
    return pulp
