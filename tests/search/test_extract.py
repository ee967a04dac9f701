"""Extraction: every program of an and-or graph once, cheapest first, shared values paid once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from mirage_kernels.generator.search.extract import Extraction, Program
from mirage_kernels.generator.search.fingerprints import Refined
from mirage_kernels.generator.search.sketch import Setting, Step
from mirage_kernels.generator.search.values import LOAD

Choice = tuple[tuple[int, Step], ...]
INPUT = Step(LOAD, ())


def mul(*args: int) -> Step:
    return Step("mul", args)


def add(*args: int) -> Step:
    return Step("add", args)


def extraction(
    derivations: Sequence[Sequence[Step]],
    costs: Mapping[Step, float],
    *,
    ops: int = 99,
    through: Sequence[int] = (),
) -> Extraction:
    """Return the extraction from a graph of values, each with the steps that make it."""
    graph = Refined(Setting((), None), derivations=[list(ways) for ways in derivations])
    return Extraction(graph, lambda value, step: costs.get(step, 1.0), ops, frozenset(through))


# 0 and 1 are inputs, 2 is made in two ways, 3 uses it twice over.
SHARED = [[INPUT], [INPUT], [mul(0, 1), add(0, 1)], [mul(2, 2), mul(0, 2)]]


def steps_of(programs: Sequence[Program]) -> list[list[Step]]:
    return [[step for _, step in p.steps] for p in programs]


def test_operands_come_before_their_users() -> None:
    for program in extraction(SHARED, {}).programs([3]):
        assert [value for value, _ in program.steps] == [2, 3]


def test_what_is_used_twice_is_paid_for_once() -> None:
    (cheapest, *_) = extraction([[INPUT], [mul(0, 0)], [add(1, 1)]], {INPUT: 7.0}).programs([2])
    assert cheapest.cost == 7.0 + 1.0 + 1.0


def test_what_two_results_share_is_computed_once() -> None:
    graph = [[INPUT], [mul(0, 0)], [add(1, 0)], [mul(1, 0)]]
    (program,) = extraction(graph, {}).programs([2, 3])
    assert [value for value, _ in program.steps].count(1) == 1
    assert program.roots == (2, 3)


def test_no_more_ops_than_the_limit() -> None:
    graph = [[INPUT], [mul(0, 0)], [add(0, 0), mul(1, 1), add(1, 0)]]
    assert steps_of(extraction(graph, {}, ops=1).programs([2])) == [[add(0, 0)]]
    assert len(extraction(graph, {}, ops=2).programs([2])) == 3


def test_a_value_that_nothing_makes_is_in_no_program() -> None:
    assert extraction([[INPUT], [], [mul(0, 1)]], {}).programs([2]) == []


# 1 must be read; 2 is made of it or not, 3 of 2 and 0.
THROUGH = [[INPUT], [INPUT], [mul(0, 0), mul(0, 1)], [add(0, 2), mul(0, 0), add(1, 2)]]


def test_what_must_be_read_counts_in_the_cost() -> None:
    costs = {mul(0, 1): 9.0}
    free, bound = (extraction(THROUGH, costs, through=t).programs([3], 1) for t in ([], [1]))
    assert steps_of(free) == [[mul(0, 0)]]
    assert steps_of(bound) == [[mul(0, 0), add(1, 2)]]


def test_nothing_is_found_where_what_must_be_read_is_not_used() -> None:
    assert extraction([[INPUT], [INPUT], [mul(0, 0)]], {}, through=[1]).programs([2]) == []


def random_graph(seed: int) -> tuple[list[list[Step]], dict[Step, float]]:
    """Return a graph of ten values and a cost for every step."""
    rng = random.Random(seed)
    graph = [[INPUT] for _ in range(3)]
    for value in range(3, 10):
        ways = {
            Step(rng.choice(("mul", "add")), (rng.randrange(value), rng.randrange(value)))
            for _ in range(rng.randint(1, 3))
        }
        graph.append(sorted(ways))
    costs = {step: float(rng.randint(1, 40)) for ways in graph for step in ways}
    return graph, costs


def every_choice(graph: Sequence[Sequence[Step]], root: int) -> Iterator[Choice]:
    """Yield the programs of a graph one by one, newest value first, each with its derivations."""

    def chosen(value: int, needed: frozenset[int]) -> Iterator[Choice]:
        if value < 0:
            yield ()
        elif value not in needed:
            yield from chosen(value - 1, needed)
        else:
            for step in graph[value]:
                for rest in chosen(value - 1, needed | {*step.args}):
                    yield (*rest, (value, step))

    return chosen(root, frozenset({root}))


@pytest.mark.parametrize("seed", range(30))
def test_the_programs_are_those_of_trying_every_choice(seed: int) -> None:
    graph, costs = random_graph(seed)
    wanted = {
        tuple(item for item in choice if item[1] != INPUT): sum(costs[s] for _, s in choice)
        for choice in every_choice(graph, 9)
    }
    programs = extraction(graph, costs).programs([9])
    assert {tuple(sorted(p.steps)): p.cost for p in programs} == pytest.approx(wanted)
    assert len(programs) == len(wanted)


@pytest.mark.parametrize("seed", range(30))
def test_the_cheapest_of_some_are_no_dearer_than_the_cheapest_of_all(seed: int) -> None:
    graph, costs = random_graph(seed)
    every, some = (extraction(graph, costs).programs([9], wanted) for wanted in (None, 3))
    assert len(some) == min(3, len(every))
    assert some[0].cost <= 1.5 * every[0].cost  # what is shared makes regret an estimate


@pytest.mark.parametrize("seed", range(30))
def test_programs_with_an_obligation_are_those_that_read_it(seed: int) -> None:
    graph, costs = random_graph(seed)
    reading = [
        choice
        for choice in every_choice(graph, 9)
        if 2 in {a for _, step in choice for a in step.args}
    ]
    programs = extraction(graph, costs, through=[2]).programs([9])
    assert len(programs) == len(reading)
