"""Which knobs of a general kernel are measured: fast ones by prediction that differ in earnest.

The model of time is coarse: it says which knobs are hopeless, little of those beside each other. So
each candidate after the rule's choice is fast by prediction and far from those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import inf, log2, prod

from mirage_kernels.generator.errors import MirageError, PlanError
from mirage_kernels.generator.ir import Graph, retile
from mirage_kernels.generator.schedules.general import (
    GeneralKnobs,
    Times,
    explored,
    knobs_of,
    predict,
    roles_of,
    sizes_for,
)
from mirage_kernels.generator.schedules.general.options import choices, combines
from mirage_kernels.generator.schedules.schedule import Knobs
from mirage_kernels.generator.target import Target
from mirage_kernels.generator.tiles.check import require_same

TOO_SLOW = 3.0  # times slower than the fastest by prediction: not worth a measurement
AROUND = 4  # of the fastest seen, whose threads and stages are changed together
SPREAD, STRIDE = 128, 0.618034  # of all that there are, evenly, by the golden ratio


def general_candidates(graph: Graph, size: int, on: Target, top: int) -> list[tuple[Knobs, float]]:
    """Return what to measure for a bucket, with predicted times: the rule's choice, `top` others.

    Programs of all of them were run in the interpreter. Raises PlanError where nothing has room.
    """
    sizes = sizes_for(graph, roles_of(graph).counted, size)
    options, (best, seen) = choices(graph, sizes), explored(graph, sizes, on)
    parted = _by_parts(graph, sizes, on)
    more = [*parted, *_around(seen, options), *_spread(options)]
    times = {**{k: predict(graph, k, sizes, on) for k in more if k not in seen}, **seen}
    near = {k: us for k, us in times.items() if us <= TOO_SLOW * times[best]}
    parted = [k for k in parted if k in near and k != best and _runs(graph, k)]
    found = [best, *parted][: top + 1]
    left = sorted(near, key=lambda k: near[k])
    while left and len(found) <= top:
        left = [k for k in left if k not in found]
        chosen = min(left, key=lambda k: near[k] * (1 + 1 / _distance(k, found)), default=None)
        if chosen is None:
            break
        left.remove(chosen)
        if _runs(graph, chosen):
            found.append(chosen)
    return [(knobs, round(times[knobs], 3)) for knobs in found]


Options = Mapping[str, tuple[int, ...]]


def _by_parts(graph: Graph, sizes: Mapping[str, int], on: Target) -> list[GeneralKnobs]:
    """Return the fastest knobs for each length of the parts of a sum that another kernel joins.

    How much more blocks cost is what the model knows least of; they come with fewest stages too.
    """
    options, found = choices(graph, sizes), dict[GeneralKnobs, None]()
    axes = {a.tile_key for s in graph.spaces if not combines(graph, s) for a in s.reduced}
    for name, value in ((axis, v) for axis in sorted(axes) for v in options[axis]):
        with suppress(PlanError):
            best, _ = explored(graph, sizes, on, fixed={name: value})
            found |= {best: None, replace(best, stages=options["stages"][0]): None}
    return list(found)


def _around(seen: Times, options: Options) -> Iterator[GeneralKnobs]:
    """Yield the fastest knobs seen with other threads and stages together."""
    first = sorted((k for k in seen if seen[k] < inf), key=lambda k: seen[k])[:AROUND]
    for k, threads, stages in product(first, options["threads"], options["stages"]):
        yield knobs_of({**dict(k.cuts), "threads": threads, "stages": stages})


def _spread(options: Options) -> Iterator[GeneralKnobs]:
    """Yield some of all knobs, spread evenly: the descent sees what is near its way only."""
    count = prod(map(len, options.values()))
    for i in range(min(count, SPREAD)):
        at, chosen = int(count * (i * STRIDE % 1.0)), {}
        for name, values in options.items():
            at, place = divmod(at, len(values))
            chosen[name] = values[place]
        yield knobs_of(chosen)


def _distance(knobs: GeneralKnobs, others: list[GeneralKnobs]) -> float:
    """Return how far knobs are from the nearest of others, in doublings of tiles and threads."""
    return min(sum(_steps(knobs, other)) for other in others)


def _steps(a: GeneralKnobs, b: GeneralKnobs) -> Iterator[float]:
    for (_, one), (_, other) in zip(a.cuts, b.cuts, strict=True):
        yield abs(log2(one / other))
    yield abs(log2(a.threads / b.threads))
    yield abs(a.stages - b.stages) / 2


def _runs(graph: Graph, knobs: GeneralKnobs) -> bool:
    try:
        require_same(retile(graph, dict(knobs.cuts)), knobs.threads, knobs.stages)
    except MirageError:
        return False
    return True


def fits(graph: Graph, knobs: GeneralKnobs, size: int, on: Target) -> bool:
    """Say whether knobs that were measured are of a muGraph's axes and leave blocks room."""
    sizes = sizes_for(graph, roles_of(graph).counted, size)
    named = {"threads", "stages", *(name for name, _ in knobs.cuts)}
    return named == choices(graph, sizes).keys() and predict(graph, knobs, sizes, on) < inf
