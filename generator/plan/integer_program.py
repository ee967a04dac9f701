"""One implementation per operator, values in the layouts that they need, at least cost: an ILP.

A problem knows nothing of GPUs. Each operator takes one of its implementations, which makes values
in layouts and needs others in layouts; a conversion makes a value in a layout out of one in which
an implementation makes it. A kernel takes the time of its busiest resource, plus a tenth of the
others' (they overlap, but not free of charge), plus latencies that nothing hides, each counted once
however many need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import PlanError, ToolchainError
from mirage_kernels.generator.plan.instruction_costs import Cost
from mirage_kernels.generator.plan.layouts import ValueLayout

if TYPE_CHECKING:
    import pulp

# Share of a resource's time that shows beside a busier one's, as in the cost model.
OVERLAPPED = 0.1
# Per place in the order of an operator's implementations, and per conversion: ties go to the first.
RANK_CYCLES = 1e-3

Held = tuple[str, ValueLayout]  # a value in a layout
Latency = tuple[str, float]  # what is waited for, cycles


@dataclass(frozen=True)
class Implementation:
    """A way to compute a value, or to convert its layout."""

    value: str
    kernel: int
    needs: tuple[Held, ...]
    makes: tuple[Held, ...]
    cost: Cost
    latencies: tuple[Latency, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """What a kernel pays anyhow, what a block may hold, and the cycles per unit beyond that."""

    base: Cost
    registers: int
    shared_bytes: int
    spilled_cycles: float  # per register
    beyond_cycles: float  # per byte


@dataclass(frozen=True)
class Problem:
    """The implementations of each operator in canonical order, the conversions, the kernels."""

    operators: Mapping[str, tuple[Implementation, ...]]
    conversions: tuple[Implementation, ...]
    kernels: Mapping[int, Kernel]


@dataclass(frozen=True)
class Solution:
    """An implementation of every operator, the conversions in use, and their cost in cycles."""

    operators: Mapping[str, Implementation]
    conversions: tuple[Implementation, ...]
    cycles: float

    @property
    def all(self) -> tuple[Implementation, ...]:
        """Every implementation and conversion in use."""
        return (*self.operators.values(), *self.conversions)


def cycles(problem: Problem, chosen: Sequence[Implementation]) -> float:
    """Return the cycles of a choice."""
    total = 0.0
    for index, kernel in problem.kernels.items():
        mine = [c for c in chosen if c.kernel == index]
        cost = sum((c.cost for c in mine), kernel.base)
        total += (1 - OVERLAPPED) * max(cost.cycles) + OVERLAPPED * sum(cost.cycles)
        total += sum(waited for _, waited in {x for c in mine for x in c.latencies})
        total += kernel.spilled_cycles * max(0, cost.registers - kernel.registers)
        total += kernel.beyond_cycles * max(0, cost.shared_bytes - kernel.shared_bytes)
    return total


def solve(problem: Problem) -> Solution:
    """Return the cheapest choice; of equally cheap ones the first in the order given.

    Raises PlanError, with the operator and what it lacks, if there is none.
    """
    problem = _possible(problem)
    program = _Program(problem)
    program.minimise()
    operators = {name: next(filter(program.taken, o)) for name, o in problem.operators.items()}
    conversions = tuple(filter(program.taken, problem.conversions))
    chosen = (*operators.values(), *conversions)
    return Solution(operators, conversions, cycles(problem, chosen))


def _possible(problem: Problem) -> Problem:
    """Return the problem without what can't be used: operands that nothing makes, unused goals."""
    operators, conversions = dict(problem.operators), problem.conversions
    size = -1
    while size != (size := len(conversions) + sum(map(len, operators.values()))):
        own = {held for made in chain(*operators.values()) for held in made.makes}
        every = own | {held for c in conversions for held in c.makes}
        for name, found in operators.items():
            operators[name] = tuple(i for i in found if every.issuperset(i.needs))
            if not operators[name]:
                raise PlanError(_lacking(name, found, every))
        wanted = {held for i in chain(*operators.values()) for held in i.needs}
        conversions = tuple(
            c for c in conversions if own.issuperset(c.needs) and wanted.intersection(c.makes)
        )
    return Problem(operators, conversions, problem.kernels)


def _lacking(name: str, found: Sequence[Implementation], made: set[Held]) -> str:
    if not found:
        return f"no layout of {name}: nothing that is offered implements it"
    missing = next(held for held in found[0].needs if held not in made)
    others = [str(layout) for value, layout in made if value == missing[0]]
    there = "; ".join(sorted(others)) or "no layout"
    return f"no layout of {name}: it takes {missing[0]} in {missing[1]}, which is made in {there}"


class _Program:
    """The 0/1 program of a problem: a variable for each implementation and conversion."""

    def __init__(self, problem: Problem) -> None:
        self.pulp, self.problem = _pulp(), problem
        self.lp = self.pulp.LpProblem("layouts", self.pulp.LpMinimize)
        self.every = [*chain(*problem.operators.values()), *problem.conversions]
        self.takes = {id(c): self.new(f"x{i}", "Binary") for i, c in enumerate(self.every)}
        for found in problem.operators.values():
            self.lp += self.total(found, [1.0] * len(found)) == 1
        self.add_needs()

    def new(self, name: str, kind: str = "Continuous") -> pulp.LpVariable:
        return self.lp.add_variable(name, lowBound=0, cat=kind)

    def taken(self, choice: Implementation) -> bool:
        return bool(self.takes[id(choice)].varValue > 0.5)

    def total(
        self, choices: Sequence[Implementation], amounts: Sequence[float]
    ) -> pulp.LpAffineExpression:
        terms = zip(amounts, choices, strict=True)
        return self.pulp.lpSum(amount * self.takes[id(c)] for amount, c in terms if amount)

    def add_needs(self) -> None:
        """Require that what is needed is made; for a conversion, by an implementation."""
        makers: dict[Held, list[Implementation]] = {}
        for choice in self.every:
            for held in choice.makes:
                makers.setdefault(held, []).append(choice)
        converts = set(map(id, self.problem.conversions))
        for choice in self.every:
            for held in choice.needs:
                own = id(choice) in converts
                given = [m for m in makers[held] if not (own and id(m) in converts)]
                self.lp += self.takes[id(choice)] <= self.total(given, [1.0] * len(given))

    def minimise(self) -> None:
        ranks = [float(r) for found in self.problem.operators.values() for r in range(len(found))]
        ranks += [1.0] * len(self.problem.conversions)
        cost = self.pulp.lpSum(self.kernel_cost(*k) for k in self.problem.kernels.items())
        self.lp.setObjective(cost + RANK_CYCLES * self.total(self.every, ranks))
        solver = self.pulp.COIN_CMD(
            path=self.pulp.apis.coin_api.pulp_cbc_path,  # the CBC that comes with PuLP 3
            msg=False,
            threads=1,
            gapRel=0.0,
            options=["randomSeed 1", "randomCbcSeed 1"],
        )
        if self.lp.solve(solver) != self.pulp.LpStatusOptimal:
            raise PlanError("no choice of layouts gives every operator its operands")

    def kernel_cost(self, index: int, kernel: Kernel) -> pulp.LpAffineExpression:
        mine = [c for c in self.every if c.kernel == index]
        longest, cost = self.new(f"longest_{index}"), 0
        for i in range(len(kernel.base.cycles)):
            busy = self.total(mine, [c.cost.cycles[i] for c in mine]) + kernel.base.cycles[i]
            self.lp += busy <= longest
            cost += OVERLAPPED * busy
        for i, latency in enumerate(sorted({x for c in mine for x in c.latencies})):
            paid = self.new(f"latency_{index}_{i}", "Binary")
            for c in (c for c in mine if latency in c.latencies):
                self.lp += self.takes[id(c)] <= paid
            cost += latency[1] * paid
        spilled, beyond = self.new(f"spilled_{index}"), self.new(f"beyond_{index}")  # beyond: KB
        registers = self.total(mine, [c.cost.registers for c in mine]) + kernel.base.registers
        self.lp += registers - kernel.registers <= spilled
        held = self.total(mine, [c.cost.shared_bytes / 1024 for c in mine])
        self.lp += held + (kernel.base.shared_bytes - kernel.shared_bytes) / 1024 <= beyond
        cost += kernel.spilled_cycles * spilled + 1024 * kernel.beyond_cycles * beyond
        return cost + (1 - OVERLAPPED) * longest


def _pulp() -> pulp:
    """Return the PuLP module; it is loaded when something is planned, and only then."""
    try:
        import pulp
    except ImportError as missing:
        raise ToolchainError(
            "planning layouts needs PuLP", "`pip install 'mirage-kernels[generate]'` brings it"
        ) from missing
    return pulp
