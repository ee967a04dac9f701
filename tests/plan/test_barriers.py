"""Schedules: the fewest barriers, compared with every order and placement of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import permutations, product

import pytest

from mirage_kernels.generator.plan.barriers import Edge, Schedule, Section, schedule


def orders(section: Section, edges: Sequence[Edge]) -> Iterator[tuple[str, ...]]:
    """Yield every order of the tasks that the edges within one pass allow."""
    for order in permutations(section.tasks):
        place = {t: i for i, t in enumerate(order)}
        near = (e for e in edges if not e.distance and {e.first, e.then} <= set(place))
        if all(place[e.first] < place[e.then] for e in near):
            yield order


def placements(section: Section, edges: Sequence[Edge]) -> Iterator[tuple[dict[str, int], int]]:
    """Yield every placement of barriers before and between the tasks, in a loop after them too.

    A placement is the number of barriers before each task of a pass, and of the whole pass.
    """
    seen = set()
    for order in orders(section, edges):
        for gaps in product((0, 1), repeat=len(order) + section.loop):
            depths = {t: sum(gaps[: i + 1]) for i, t in enumerate(order)}
            key = (tuple(sorted(depths.items())), sum(gaps))
            if key not in seen:
                seen.add(key)
                yield depths, sum(gaps)


def holds(edges: Sequence[Edge], epochs: dict[str, int], passes: dict[str, int]) -> bool:
    """Say whether every edge that needs a barrier has one; `passes` = barriers of a task's pass."""
    return all(
        epochs[e.then] + e.distance * passes[e.then] - epochs[e.first] >= e.barrier
        for e in edges
        if e.first in epochs and e.then in epochs
    )


def fewest(sections: Sequence[Section], edges: Sequence[Edge]) -> tuple[int, int]:
    """Return the least barriers per pass of the loops, then in all, by trying everything."""
    found = []

    def go(i: int, epochs: dict[str, int], passes: dict[str, int], cost: tuple[int, int]) -> None:
        if i == len(sections):
            found.append(cost)
            return
        for entry in (0, 1):
            for depths, inside in placements(sections[i], edges):
                base = cost[1] + entry
                now = epochs | {t: base + d for t, d in depths.items()}
                rounds = passes | dict.fromkeys(sections[i].tasks, inside)
                if holds(edges, now, rounds):
                    looped = cost[0] + (inside if sections[i].loop else 0)
                    go(i + 1, now, rounds, (looped, base + inside))

    go(0, {}, {}, (0, 0))
    return min(found)


def cost(made: Schedule, sections: Sequence[Section]) -> tuple[int, int]:
    inside = [made.barriers(i) for i in range(len(sections))]
    looped = sum(n for n, s in zip(inside, sections, strict=True) if s.loop)
    return looped, sum(inside) + sum(made.entry)


def drawn(seed: int) -> tuple[list[Section], list[Edge]]:
    """Return random tasks in up to three sections, the second a loop, and edges between them."""
    rng = random.Random(seed)
    names = iter("abcdefgh")
    sections = [
        Section(tuple(next(names) for _ in range(rng.randint(*count))), loop)
        for count, loop in (((0, 2), False), ((1, 3), True), ((0, 2), False))
    ]
    order = [t for s in sections for t in s.tasks]
    edges = []
    for i, first in enumerate(order):
        for then in order[i + 1 :]:
            if rng.random() < 0.45:
                edges.append(Edge(first, then, rng.random() < 0.6))
    for first in sections[1].tasks:
        for then in sections[1].tasks:
            if rng.random() < 0.3:
                edges.append(Edge(first, then, rng.random() < 0.8, rng.randint(1, 2)))
    return sections, edges


@pytest.mark.parametrize("seed", range(60))
def test_no_order_and_placement_that_holds_has_fewer_barriers(seed: int) -> None:
    sections, edges = drawn(seed)
    made = schedule(sections, edges)
    assert cost(made, sections) == fewest(sections, edges)
    passes = {t: made.barriers(i) for i, s in enumerate(sections) for t in s.tasks}
    assert holds(edges, dict(made.epochs), passes)
    for i, section in enumerate(sections):
        order = [t for epoch in made.order[i] for t in epoch]
        assert sorted(order) == sorted(section.tasks)
        assert all(
            order.index(e.first) < order.index(e.then)
            for e in edges
            if not e.distance and {e.first, e.then} <= set(order)
        )


def test_tasks_of_one_depth_share_a_barrier() -> None:
    edges = [Edge("a", "c", True), Edge("b", "d", True)]
    made = schedule([Section(("a", "b", "c", "d"))], edges)
    assert made.order == ((("a", "b"), ("c", "d")),)


def test_what_stays_in_one_thread_needs_no_barrier() -> None:
    made = schedule([Section(("a", "b", "c"))], [Edge("a", "b"), Edge("b", "c")])
    assert made.order == ((("a", "b", "c"),),)


def test_a_pipelined_copy_that_all_threads_read_takes_one_barrier_per_pass() -> None:
    """The copy for a later pass goes where all have read in the pass before."""
    edges = [Edge("arrive", "read", True), Edge("read", "copy", True, distance=1)]
    made = schedule([Section(("arrive", "copy", "read"), loop=True)], edges)
    assert made.order == ((("arrive",), ("copy", "read")),)


def test_a_value_stored_and_read_in_each_pass_takes_two_barriers() -> None:
    edges = [Edge("store", "load", True), Edge("load", "store", True, distance=1)]
    assert schedule([Section(("store", "load"), loop=True)], edges).barriers(0) == 2


def test_with_two_copies_of_its_place_it_takes_one() -> None:
    edges = [Edge("store", "load", True), Edge("load", "store", True, distance=2)]
    assert schedule([Section(("store", "load"), loop=True)], edges).barriers(0) == 1


def test_a_barrier_before_a_loop_rather_than_in_every_pass() -> None:
    sections = [Section(("a",)), Section(("b",), loop=True)]
    made = schedule(sections, [Edge("a", "b", True)])
    assert made.entry == (False, True)
    assert made.barriers(1) == 0


def test_edges_in_a_circle_are_refused() -> None:
    with pytest.raises(ValueError, match="round in a circle"):
        schedule([Section(("a", "b"))], [Edge("a", "b", True), Edge("b", "a", True)])
