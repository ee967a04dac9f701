"""Which muGraph becomes a general kernel: the one that is fast with few rows and with many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log
from statistics import fmean
from typing import TypeVar

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.plan.threads import with_threads
from mirage_kernels.generator.schedules.general import (
    best_knobs,
    buckets_of,
    predict,
    roles_of,
    sizes_for,
)
from mirage_kernels.generator.schedules.general.products import with_products
from mirage_kernels.generator.target import Target

MOST = 6  # ways to cut a program that are looked at: some may turn out to be inaccurate
One = TypeVar("One")


def general_first(ranked: Sequence[One], graph: Callable[[One], Graph], on: Target) -> list[One]:
    """Return muGraphs with those first that are cut as the fastest one is.

    MuGraphs that grids and loops cut alike keep their order, which is by operators. Of the first of
    each kind, general kernels are predicted for few rows, for some, and for many; the product of
    times counts.
    """
    alike: dict[object, list[One]] = {}
    for one in ranked:
        alike.setdefault(_cuts(graph(one)), []).append(one)
    groups = list(alike.values())
    first = sorted(groups[:MOST], key=lambda group: _logarithm(graph(group[0]), on))
    return [one for group in (*first, *groups[MOST:]) for one in group]


def _cuts(graph: Graph) -> object:
    return tuple(
        (tuple((a.dim, a.reduced) for a in s.grid), s.loop.dim if s.loop else "")
        for s in graph.spaces
    )


def _logarithm(graph: Graph, on: Target) -> float:
    """Return the mean logarithm of predicted times; infinite for what no block has room for."""
    made = with_products(with_threads(graph))
    counted = roles_of(made).counted

    def time(size: int) -> float:
        sizes = sizes_for(made, counted, size)
        return log(predict(made, best_knobs(made, sizes, on, starts=1), sizes, on))

    few, *more = buckets_of(made, counted)
    try:
        return fmean(map(time, (few, *more[-2:])))
    except PlanError:
        return inf
