"""Pruning loses nothing: the search finds what trying every block graph finds.

Brute force knows no abstract terms, so it also proves programs that are equal for reasons that the
search's axioms leave out, and the search's space leaves out one more kind. Both are documented in
docs/search.md; everything else must be found:

* nothing cancels: `x * y / y`, `x / (y / z)`, `sum(x) / sum(x / x)`;
* a program computes no value twice: two ops whose results have the same term, cuts, time and
  meaning are never in one program, even where each makes it in a way of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import mul
from typing import TypeVar

import pytest
from brute import Enumeration
from programs import PROGRAMS
from small import Small, block_of, expression, programs_of, search_of

from mirage_kernels.generator.ir import DType, Graph
from mirage_kernels.generator.meaning.abstract import abstract_reading, target_term
from mirage_kernels.generator.meaning.terms import Terms
from mirage_kernels.generator.meaning.walk import walk
from mirage_kernels.generator.search.lower import lower
from mirage_kernels.generator.search.sketch import Limits, ProgramSketch
from mirage_kernels.generator.search.superoptimizer import goal_of, reason_against
from mirage_kernels.generator.search.verify import Prover
from mirage_kernels.generator.search.vocabulary import Vocabulary

T = TypeVar("T")


@dataclass(frozen=True)
class Compared:
    """What brute force proves, in the search's space and beyond it, and what the search finds."""

    tried: int
    proved: frozenset[str]
    in_space: frozenset[str]
    found: frozenset[str]
    refuted: frozenset[str]  # found, but not equal to the spec


@cache
def compared(name: str) -> Compared:
    spec, ops = PROGRAMS[name].small.spec(), PROGRAMS[name].ops
    prover = Prover(spec)
    limits = Limits(kept=None, kernels=1, block_ops=ops)
    tried, equal = 0, dict[str, bool]()  # whether it is in the search's space
    for setting in search_of(spec, limits).problem.settings():
        every = Enumeration(spec, setting, ops)
        for number in every.run():
            program = ProgramSketch((every.sketch(number),))
            if not reason_against(program, prover):
                equal[expression(block_of(program))] = is_in_space(every, number)
        tried += len(every.steps)
    found = {expression(block_of(p)): p for p in programs_of(spec, limits)}
    refuted = {text for text, p in found.items() if reason_against(p, prover)}
    in_space = frozenset(text for text, inside in equal.items() if inside)
    return Compared(
        tried, frozenset(equal), in_space, frozenset(found) - refuted, frozenset(refuted)
    )


def is_in_space(every: Enumeration, number: int) -> bool:
    """Return whether a program equals the spec by the axioms and makes each value one way."""
    terms = Terms()
    target = target_term(terms, every.spec)
    graph = lower(ProgramSketch((every.sketch(number),)), goal_of(every.spec, DType.FP16))
    made = list(terms_of(graph, terms))
    if made[-1] != target:
        return False
    numbers = sorted(every.ops[number])
    terms_made = zip(numbers, made[-len(numbers) :], strict=True)
    classes = {(term, every.types[n], every.meaning(n)) for n, term in terms_made}
    return len(classes) == len(numbers)


def terms_of(graph: Graph, terms: Terms) -> Iterator[int]:
    """Yield the terms of a kernel's values but its output, in order."""
    (block,) = graph.blocks
    assert block.body is not None
    outer = [terms.leaf("input", n.name) for n in graph.inputs]
    found = walk(graph, outer, abstract_reading(terms))
    inner = walk(block.body, [found[a] for a in block.args], abstract_reading(terms, block.body))
    yield from (inner[n.name] for n in block.body.nodes if n.op != "output")


@pytest.mark.parametrize("name", PROGRAMS)
def test_pruning_loses_no_program(name: str) -> None:
    assert compared(name).in_space - compared(name).found == set()


@pytest.mark.parametrize("name", PROGRAMS)
def test_everything_found_is_in_the_space_that_is_searched(name: str) -> None:
    assert compared(name).found - compared(name).in_space == set()


def nothing_to_cancel() -> list[str]:
    """Return the programs in which no quotient, difference or choice could cancel."""
    specs = {name: tried.small.spec() for name, tried in PROGRAMS.items()}
    return [name for name, spec in specs.items() if not spec.of("div", "sub", "where", "rsqrt")]


@pytest.mark.parametrize("name", nothing_to_cancel())
def test_where_nothing_cancels_the_search_finds_all_that_can_be_proved(name: str) -> None:
    assert compared(name).found == compared(name).proved


def test_all_that_is_found_is_proved() -> None:
    assert {name for name in PROGRAMS if compared(name).refuted} == set()


def test_dividing_by_a_quotient_is_beyond_the_axioms() -> None:
    both = compared("a ratio of sums")
    assert all(", div(" in text for text in both.proved - both.found)


# Without terms to prune by, saturation makes every value of so many levels: few programs are small
# enough for that.
UNPRUNED = {
    "scaled sum": 3,
    "linear": 3,
    "mean": 2,
    "linear with bias": 2,
    "centred": 2,
    "a product of sums": 2,
    "softmax along a short dim": 2,
}


@pytest.mark.parametrize("name", UNPRUNED)
def test_saturation_without_pruning_finds_the_same(name: str) -> None:
    spec = PROGRAMS[name].small.spec()
    limits = Limits(kept=None, kernels=1, block_ops=UNPRUNED[name])
    whole = search_of(spec, replace(limits, prune_abstract=False))
    found = [whole.run(task) for task in whole.tasks()]
    assert not any(f.counts.pruned.get("budget") for f in found)
    assert {p for f in found for p in f.programs} == set(programs_of(spec, limits))


def states(spec: Graph, limits: Limits) -> int:
    search = search_of(spec, limits)
    return sum(search.run(task).counts.states for task in search.tasks())


def test_pruning_visits_fewer_states() -> None:
    spec = PROGRAMS["centred"].small.spec()
    limits = Limits(kernels=1, block_ops=2)
    assert 5 * states(spec, limits) < states(spec, replace(limits, prune_abstract=False))


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_program_is_found_twice(name: str) -> None:
    programs = programs_of(PROGRAMS[name].small.spec(), Limits(kernels=1, block_ops=6))
    assert len({expression(block_of(p)) for p in programs}) == len(programs)


def fit(target: Mapping[str, int], *operands: Mapping[str, int]) -> bool:
    """Return whether a product of two products of powers may be needed for another one."""
    spec = Small(dict.fromkeys("xy", "M"), lambda x, y: power_product(mul, target, x, y)).spec()
    terms = Terms()
    inputs = [terms.leaf("input", name) for name in "xy"]
    made = [power_product(terms.mul, powers, *inputs) for powers in operands]
    return bool(Vocabulary(spec, terms, Limits()).ops_on(*made))


def power_product(times: Callable[[T, T], T], powers: Mapping[str, int], x: T, y: T) -> T:
    return reduce(times, [x] * powers["x"] + [y] * powers["y"])


def test_an_input_that_occurs_very_often_is_not_counted() -> None:
    # 192 is more than a byte counts
    assert fit({"x": 192, "y": 1}, {"x": 100, "y": 1}, {"x": 92, "y": 0})


def test_an_input_that_occurs_too_often_does_not_fit() -> None:
    assert fit({"x": 1, "y": 1}, {"x": 1, "y": 0}, {"x": 0, "y": 1})
    assert not fit({"x": 1, "y": 1}, {"x": 1, "y": 0}, {"x": 1, "y": 0})
