"""One implementation per operator, values in the layouts that they need, at least cost: an ILP.

A problem knows nothing of GPUs. Each operator takes one of its implementations, which makes values
in layouts and needs others in layouts; a conversion makes a value in a layout out of one in which
an implementation makes it. The kernel takes the time of its busiest resource, plus a tenth of the
others' (they overlap, but not free of charge), plus latencies that nothing hides, each counted once
however many need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from mirage_kernels.generator.errors import PlanError, ToolchainError
from mirage_kernels.generator.plan.costs import Cost
from mirage_kernels.generator.plan.layouts import ValueLayout

if TYPE_CHECKING:
    import pulp

# Share of a resource's time that shows beside a busier one's, as in the cost model.
OVERLAPPED = 0.1
# Per place in the order of an operator's implementations, and per conversion: ties go to the first.
RANK_CYCLES = 1e-3

Placed = tuple[str, ValueLayout]  # a value in a layout
Latency = tuple[str, float]  # what is waited for, cycles


@dataclass(frozen=True)
class Implementation:
    """A way to compute a value, or to convert its layout."""

    value: str
    needs: tuple[Placed, ...]
    makes: tuple[ValueLayout, ...]
    cost: Cost
    latencies: tuple[Latency, ...] = ()

    @property
    def placed(self) -> tuple[Placed, ...]:
        """The value in the layouts that it is made in."""
        return tuple((self.value, layout) for layout in self.makes)


@dataclass(frozen=True)
class Problem:
    """The implementations of each operator in canonical order, and the conversions.

    `base` is what the kernel pays anyhow; a block holds so many registers and bytes, and each one
    beyond that costs cycles.
    """

    operators: Mapping[str, tuple[Implementation, ...]]
    conversions: tuple[Implementation, ...]
    base: Cost
    registers: int
    shared_bytes: int
    spilled_cycles: float  # per register
    beyond_cycles: float  # per byte

    def cycles(self, chosen: Sequence[Implementation]) -> float:
        """Return the cycles of a choice."""
        cost = sum((c.cost for c in chosen), self.base)
        total = (1 - OVERLAPPED) * max(cost.cycles) + OVERLAPPED * sum(cost.cycles)
        total += sum(waited for _, waited in {x for c in chosen for x in c.latencies})
        total += self.spilled_cycles * max(0, cost.registers - self.registers)
        return total + self.beyond_cycles * max(0, cost.shared_bytes - self.shared_bytes)


@dataclass(frozen=True)
class Solution:
    """An implementation of every operator, the conversions in use, and their cost in cycles."""

    operators: Mapping[str, Implementation]
    conversions: tuple[Implementation, ...]
    cycles: float

    def layouts(self, value: str) -> tuple[ValueLayout, ...]:
        """Return every layout that a value takes, in the order in which it takes them."""
        converted = (c.makes for c in self.conversions if c.value == value)
        return (*self.operators[value].makes, *chain(*converted))


def solve(problem: Problem) -> Solution:
    """Return the cheapest choice; of equally cheap ones the first in the order given.

    Raises PlanError, with the operator and what it lacks, if there is none.
    """
    problem = _possible(problem)
    taken = _Program(problem).minimise()
    operators = {name: next(filter(taken, o)) for name, o in problem.operators.items()}
    conversions = tuple(filter(taken, problem.conversions))
    return Solution(operators, conversions, problem.cycles((*operators.values(), *conversions)))


def _possible(problem: Problem) -> Problem:
    """Return the problem without what can't be used: operands that nothing makes, unused goals."""
    operators, conversions = dict(problem.operators), problem.conversions
    size = -1
    while size != (size := len(conversions) + sum(map(len, operators.values()))):
        own = {placed for made in chain(*operators.values()) for placed in made.placed}
        every = own | {placed for c in conversions for placed in c.placed}
        for name, found in operators.items():
            operators[name] = tuple(i for i in found if every.issuperset(i.needs))
            if not operators[name]:
                if not found:
                    raise PlanError(f"no layout of {name}: nothing that is offered implements it")
                missing = next(placed for placed in found[0].needs if placed not in every)
                others = sorted(str(layout) for value, layout in every if value == missing[0])
                raise PlanError(
                    f"no layout of {name}: it takes {missing[0]} in {missing[1]}, "
                    f"which is made in {'; '.join(others) or 'no layout'}"
                )
        wanted = {placed for i in chain(*operators.values()) for placed in i.needs}
        conversions = tuple(
            c for c in conversions if own.issuperset(c.needs) and wanted.intersection(c.placed)
        )
    return replace(problem, operators=operators, conversions=conversions)


class _Program:
    """The 0/1 program of a problem: a variable for each implementation and conversion."""

    def __init__(self, problem: Problem) -> None:
        try:
            import pulp  # when something is planned, and only then
        except ImportError as missing:
            raise ToolchainError(
                "planning layouts needs PuLP", "`pip install 'mirage-kernels[generate]'` brings it"
            ) from missing
        self.pulp, self.problem = pulp, problem
        self.lp = pulp.LpProblem("layouts", pulp.LpMinimize)
        self.operators = [*chain(*problem.operators.values())]
        self.every = [*self.operators, *problem.conversions]
        self.takes = {id(c): self.new(f"x{i}", "Binary") for i, c in enumerate(self.every)}

    def new(self, name: str, kind: str = "Continuous") -> pulp.LpVariable:
        return self.lp.add_variable(name, lowBound=0, cat=kind)

    def count(self, choices: Sequence[Implementation]) -> pulp.LpAffineExpression:
        return self.pulp.lpSum(self.takes[id(c)] for c in choices)

    def total(self, amounts: Iterable[float]) -> pulp.LpAffineExpression:
        """Return the sum of amounts, one for each implementation and conversion, in use."""
        terms = zip(amounts, self.every, strict=True)
        return self.pulp.lpSum(amount * self.takes[id(c)] for amount, c in terms if amount)

    def minimise(self) -> Callable[[Implementation], bool]:
        """Solve the program; return which implementations and conversions it takes."""
        problem, pulp = self.problem, self.pulp
        for found in problem.operators.values():
            self.lp += self.count(found) == 1
        # What is needed is made; for a conversion, by an implementation.
        made_by: dict[Placed, list[Implementation]] = {}
        for makers, users in (
            (self.operators, problem.conversions),
            (problem.conversions, self.operators),
        ):
            for placed, choice in [(placed, c) for c in makers for placed in c.placed]:
                made_by.setdefault(placed, []).append(choice)
            for need, choice in [(need, c) for c in users for need in c.needs]:
                self.lp += self.takes[id(choice)] <= self.count(made_by[need])
        ranks = [float(r) for found in problem.operators.values() for r in range(len(found))]
        ranks += [1.0] * len(problem.conversions)
        self.lp.setObjective(self.cost() + RANK_CYCLES * self.total(ranks))
        solver = pulp.COIN_CMD(
            path=pulp.apis.coin_api.pulp_cbc_path,  # the CBC that comes with PuLP 3
            msg=False,
            threads=1,
            gapRel=0.0,
            options=["randomSeed 1", "randomCbcSeed 1"],
        )
        if self.lp.solve(solver) != pulp.LpStatusOptimal:
            raise PlanError("no choice of layouts gives every operator its operands")
        return lambda choice: bool(self.takes[id(choice)].varValue > 0.5)

    def cost(self) -> pulp.LpAffineExpression:
        """Return the cycles of a choice, as `Problem.cycles` does."""
        problem = self.problem
        longest, spilled, beyond = (self.new(name) for name in ("longest", "spilled", "beyond_kb"))
        cost = (1 - OVERLAPPED) * longest + problem.spilled_cycles * spilled
        cost += 1024 * problem.beyond_cycles * beyond
        for i, base in enumerate(problem.base.cycles):
            busy = self.total(c.cost.cycles[i] for c in self.every) + base
            self.lp += busy <= longest
            cost += OVERLAPPED * busy
        for i, latency in enumerate(sorted({x for c in self.every for x in c.latencies})):
            paid = self.new(f"latency_{i}", "Binary")
            for c in (c for c in self.every if latency in c.latencies):
                self.lp += self.takes[id(c)] <= paid
            cost += latency[1] * paid
        registers = self.total(c.cost.registers for c in self.every) + problem.base.registers
        self.lp += registers - problem.registers <= spilled
        kb = self.total(c.cost.shared_bytes / 1024 for c in self.every)
        self.lp += kb + (problem.base.shared_bytes - problem.shared_bytes) / 1024 <= beyond
        return cost
