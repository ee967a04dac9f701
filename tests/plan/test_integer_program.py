"""The 0/1 program: as cheap as the best of all choices, and the same one every time."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from itertools import combinations, product

import pytest

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.costs import Cost
from mirage_kernels.generator.plan.integer_program import Implementation, Problem, Solution, solve
from mirage_kernels.generator.plan.layouts import Fragment, Lanes

EMPTY = Problem(
    {}, (), Cost(), registers=10, shared_bytes=100, spilled_cycles=7.0, beyond_cycles=0.5
)


LAYOUTS = [Fragment(Lanes.MMA, (f"D{i}",), ()) for i in range(3)]


def cost(rng: random.Random) -> Cost:
    drawn = {f.name: rng.randint(0, 40) for f in fields(Cost) if rng.random() < 0.5}
    return Cost(**drawn | {"registers": rng.randint(0, 6), "shared_bytes": rng.randint(0, 60)})


def drawn(seed: int) -> Problem:
    """Return a chain of operators, each of which makes a value in one of three layouts."""
    rng = random.Random(seed)
    operators, conversions = {}, []
    for i in range(rng.randint(2, 4)):
        found = []
        for _ in range(rng.randint(1, 3)):
            used = (j for j in range(i) if rng.random() < 0.7)
            needs = tuple((f"v{j}", rng.choice(LAYOUTS)) for j in used)
            latencies = (("once", 25.0),) if rng.random() < 0.3 else ()
            makes = (rng.choice(LAYOUTS),)
            found.append(Implementation(f"v{i}", needs, makes, cost(rng), latencies))
        operators[f"v{i}"] = tuple(found)
        for a, b in ((0, 1), (1, 2), (2, 0)):
            needs = ((f"v{i}", LAYOUTS[a]),)
            conversions.append(Implementation(f"v{i}", needs, (LAYOUTS[b],), cost(rng)))
    base = cost(rng) if rng.random() < 0.5 else Cost()
    return replace(EMPTY, operators=operators, conversions=tuple(conversions), base=base)


def possible(operators: tuple[Implementation, ...], used: tuple[Implementation, ...]) -> bool:
    """Say whether all needs are met: those of conversions by operators."""
    own = {made for i in operators for made in i.placed}
    every = own | {made for c in used for made in c.placed}
    return all(every.issuperset(i.needs) for i in operators) and all(
        own.issuperset(c.needs) for c in used
    )


def brute_force(problem: Problem) -> float | None:
    """Return the least cost over all implementations and all sets of up to four conversions."""
    sets = [s for n in range(5) for s in combinations(problem.conversions, n)]
    costs = (
        problem.cycles((*operators, *used))
        for operators in product(*problem.operators.values())
        for used in sets
        if possible(operators, used)
    )
    return min(costs, default=None)


@pytest.mark.parametrize("seed", range(30))
def test_no_choice_is_cheaper(seed: int) -> None:
    problem = drawn(seed)
    cheapest = brute_force(problem)
    if cheapest is None:
        with pytest.raises(PlanError, match=r"no layout of v|no choice of layouts"):
            solve(problem)
        return
    made = solve(problem)
    operators = tuple(made.operators.values())
    assert possible(operators, made.conversions)
    assert made.cycles == problem.cycles((*operators, *made.conversions)) <= cheapest * (1 + 1e-5)
    assert solve(problem) == made


def solved(operators: dict[str, list[Cost]], base: Cost = EMPTY.base) -> Solution:
    """Return the choice for operators that need nothing, with implementations of these costs."""
    found = {
        name: tuple(Implementation(name, (), (), cost) for cost in costs)
        for name, costs in operators.items()
    }
    return solve(replace(EMPTY, operators=found, base=base))


def test_of_equally_cheap_implementations_the_first_is_taken() -> None:
    problem = {name: [Cost(issue=5.0, registers=i) for i in range(3)] for name in "xy"}
    assert [i.cost.registers for i in solved(problem).operators.values()] == [0, 0]


def test_a_resource_that_is_not_the_busiest_costs_little() -> None:
    busy, idle = Cost(memory=100.0, issue=1.0), Cost(issue=90.0, shared=20.0)
    assert solved({"x": [busy, idle]}, Cost(memory=100.0)).operators["x"].cost is idle


def test_a_latency_is_paid_once() -> None:
    found = {
        name: tuple(
            Implementation(name, (), (), cost, waits)
            for cost, waits in ((Cost(issue=30.0), ()), (Cost(), (("barrier", 40.0),)))
        )
        for name in "xy"
    }
    made = solve(replace(EMPTY, operators=found))
    assert all(i.latencies for i in made.operators.values())


def test_what_an_operator_lacks_is_named() -> None:
    x = Implementation("x", (), (LAYOUTS[0],), Cost())
    y = Implementation("y", (("x", LAYOUTS[1]),), (), Cost())
    problem = replace(EMPTY, operators={"x": (x,), "y": (y,)})
    lacking = r"no layout of y: it takes x in .*\[D1 \| \], which is made in .*\[D0 \| \]"
    with pytest.raises(PlanError, match=lacking):
        solve(problem)
    with pytest.raises(PlanError, match="no layout of x: nothing that is offered implements it"):
        solve(replace(problem, operators={"x": ()}))
