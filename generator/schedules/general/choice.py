"""Which muGraph becomes a general kernel: the one that is fast with few rows and with many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log
from typing import TypeVar

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.schedules.general import (
    BUCKETS,
    best_knobs,
    buckets_of,
    predict,
    reasons,
    roles_of,
    sizes_for,
)
from mirage_kernels.generator.schedules.general.products import with_products
from mirage_kernels.generator.target import Target

STARTS = 3  # of the choice of knobs, where two forms of a muGraph are compared
MOST = 6  # ways to cut a program that are looked at: some may turn out to be inaccurate
One = TypeVar("One")


def general_first(
    ranked: Sequence[One],
    graph: Callable[[One], Graph],
    on: Target,
    apart: Callable[[One], One | None] = lambda one: None,
) -> list[One]:
    """Return muGraphs with those first that are cut as the fastest one is.

    MuGraphs that grids and loops cut alike keep their order, which is by operators. Of the first of
    each kind, general kernels are predicted for few rows and for many; the product of times counts.
    `apart` makes another form of a muGraph, or none: all of a kind come in it where it is faster,
    with few rows and with many.
    """
    alike: dict[object, list[One]] = {}
    for one in ranked:
        alike.setdefault(_cuts(graph(one)), []).append(one)
    groups = list(alike.values())
    timed = list[tuple[float, list[One]]]()
    for group in groups[:MOST]:
        other = apart(group[0])
        starts = 1 if other is None else STARTS
        times = _logarithms(graph(group[0]), on, starts)
        if other is not None:
            faster = _logarithms(graph(other), on, starts)
            if all(a < b for a, b in zip(faster, times, strict=True)):
                times, group = faster, [*filter(None, map(apart, group)), *group]
        timed.append((sum(times), group))
    timed.sort(key=lambda pair: pair[0])
    return [one for group in (*(g for _, g in timed), *groups[MOST:]) for one in group]


def _cuts(graph: Graph) -> object:
    return tuple(
        (tuple((a.dim, a.reduced) for a in s.grid), s.loop.dim if s.loop else "")
        for s in graph.spaces
    )


def _logarithms(graph: Graph, on: Target, starts: int) -> tuple[float, float]:
    """Return the logarithms of predicted times, few rows and many; infinite without room."""
    made = with_products(with_threads(graph))
    if any(reasons(made, on)):
        return inf, inf
    counted = roles_of(made).counted

    def time(size: int) -> float:
        sizes = sizes_for(made, counted, size)
        try:
            return log(predict(made, best_knobs(made, sizes, on, starts=starts), sizes, on))
        except PlanError:
            return inf

    few, many = buckets_of(made, counted)[0], BUCKETS[-1]
    first = time(few)
    return first, first if few == many else time(many)
