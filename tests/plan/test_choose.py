"""The 0/1 program: as cheap as the best of all choices, and the same one every time."""

from __future__ import annotations

import random
from itertools import chain, combinations, product

import pytest

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.plan.forms import Fragment, Lanes
from mirage_kernels.generator.plan.integer_program import (
    RESOURCES,
    Held,
    Limits,
    Problem,
    Way,
    Work,
    possible,
    price,
    solve,
)

LIMITS = Limits(registers=10, shared_bytes=100, spilled_cycles=7.0, beyond_cycles=0.5)


def held(value: str, form: int) -> Held:
    return value, Fragment(Lanes.PAIRS, (f"D{form}",), ())


def work(rng: random.Random) -> Work:
    cycles = {r: float(rng.randint(0, 40)) for r in RESOURCES if rng.random() < 0.5}
    return Work(cycles, rng.randint(0, 6), rng.randint(0, 60))


def drawn(seed: int) -> Problem:
    """Return a chain of items, each of which makes a value in one of three forms."""
    rng = random.Random(seed)
    items, moves = {}, []
    for i in range(rng.randint(2, 4)):
        ways = []
        for w in range(rng.randint(1, 3)):
            needs = tuple(held(f"v{j}", rng.randrange(3)) for j in range(i) if rng.random() < 0.7)
            latencies = ("once",) if rng.random() < 0.3 else ()
            mode = ("kind", rng.choice("ab")) if rng.random() < 0.3 else None
            makes = (held(f"v{i}", rng.randrange(3)),)
            kernel = int(i > 2)
            ways.append(Way(f"{i}{w}", kernel, needs, makes, work(rng), latencies, mode))
        items[f"v{i}"] = tuple(ways)
        for a, b in ((0, 1), (1, 2), (2, 0)):
            needs, makes = (held(f"v{i}", a),), (held(f"v{i}", b),)
            first_hand = rng.random() < 0.5
            move = Way(f"move {i} {a}", 0, needs, makes, work(rng), (), None, first_hand, True)
            if a != 2 or first_hand:  # else forms could make one another
                moves.append(move)
    base = {0: work(rng)} if rng.random() < 0.5 else {}
    return Problem(items, tuple(moves), {"once": 25.0}, LIMITS, base)


def brute_force(problem: Problem) -> float | None:
    """Return the least cost over all ways of all items and all sets of moves."""
    sets = list(
        chain.from_iterable(
            combinations(problem.moves, n) for n in range(min(3, len(problem.moves)) + 1)
        )
    )
    costs = [
        price(problem, (*ways, *moves))
        for ways in product(*problem.items.values())
        for moves in sets
        if possible((*ways, *moves))
    ]
    return min(costs, default=None)


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_is_cheaper(seed: int) -> None:
    problem = drawn(seed)
    cheapest = brute_force(problem)
    if cheapest is None:
        with pytest.raises(PlanError):
            solve(problem)
        return
    made = solve(problem)
    assert possible(made.all)
    assert made.cycles == price(problem, made.all)
    assert made.cycles <= cheapest * (1 + 1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_same_problem_has_the_same_solution(seed: int) -> None:
    problem = drawn(seed + 100)
    if brute_force(problem) is not None:
        assert solve(problem) == solve(problem)


def test_of_equally_cheap_ways_the_first_is_taken() -> None:
    ways = tuple(Way(name, 0, (), (), Work({"issue": 5.0})) for name in "abc")
    made = solve(Problem({"x": ways, "y": ways}, (), {}, LIMITS))
    assert [w.name for w in made.ways.values()] == ["a", "a"]


def test_a_resource_that_is_not_the_busiest_costs_little() -> None:
    busy = Way("busy", 0, (), (), Work({"memory": 100.0, "issue": 1.0}))
    idle = Way("idle", 0, (), (), Work({"issue": 90.0, "shared": 20.0}))
    problem = Problem({"x": (busy, idle)}, (), {}, LIMITS, {0: Work({"memory": 100.0})})
    assert solve(problem).ways["x"] is idle


def test_a_latency_is_paid_once() -> None:
    late = [Way(f"late {i}", 0, (), (), Work(), ("barrier",)) for i in range(2)]
    slow = [Way(f"slow {i}", 0, (), (), Work({"issue": 30.0})) for i in range(2)]
    problem = Problem(
        {"x": (slow[0], late[0]), "y": (slow[1], late[1])}, (), {"barrier": 40.0}, LIMITS
    )
    assert list(solve(problem).ways.values()) == late


def test_users_of_one_value_answer_alike() -> None:
    """Each would rather give another answer."""
    ways = {
        user: tuple(
            Way(f"{user} {answer}", 0, (), (), Work({"issue": cost}), mode=("kind", answer))
            for answer, cost in costs.items()
        )
        for user, costs in {
            "x": {"own": 1.0, "whole": 9.0},
            "y": {"own": 5.0, "whole": 1.0},
        }.items()
    }
    made = solve(Problem(ways, (), {}, LIMITS))
    assert [w.mode for w in made.ways.values()] == [("kind", "own")] * 2


def test_a_form_that_nothing_makes_is_an_error() -> None:
    way = Way("x", 0, (held("y", 0),), ())
    with pytest.raises(PlanError, match="no choice of layouts"):
        solve(Problem({"x": (way,)}, (), {}, LIMITS))
