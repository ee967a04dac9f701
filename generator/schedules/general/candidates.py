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
from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.schedules.general import (
    Form,
    GeneralKnobs,
    Times,
    explored,
    fastest,
    form_of,
    predict,
    required,
    roles_of,
    sizes_for,
    tiled,
)
from mirage_kernels.generator.schedules.general.options import choices, combines, more_parts
from mirage_kernels.generator.target import Target
from mirage_kernels.generator.tiles.check import require_same

TOO_SLOW = 3.0  # times slower than the fastest by prediction: not worth a measurement
AROUND = 4  # of the fastest seen, whose threads and stages are changed together
SPREAD, STRIDE = 128, 0.618034  # of all that there are, evenly, by the golden ratio


def general_candidates(
    graph: Graph, size: int, on: Target, top: int
) -> list[tuple[GeneralKnobs, float]]:
    """Return what to measure for a bucket, with predicted times: the rule's choice, `top` others.

    Programs of all of them were run in the interpreter. Raises PlanError where nothing has room.
    """
    sizes = sizes_for(graph, roles_of(graph).counted, size)
    bests, parted, times = Times(), list[GeneralKnobs](), Times()
    for form in required(graph, on):
        options, (own, seen) = form.choices(sizes), explored(form, sizes, on)
        bests[own], of_parts = seen[own], _by_parts(form, sizes, on)
        more = [*of_parts, *_around(form, seen, options), *_spread(form, options)]
        times |= {**{k: form.predict(k, sizes, on) for k in more if k not in seen}, **seen}
        parted += of_parts
    best = fastest(bests, on)
    near = {k: us for k, us in times.items() if us <= TOO_SLOW * times[best]}
    parted = [k for k in parted if k in near and k != best and _runs(graph, k)]
    others = [k for k in bests if k != best and k in near and _runs(graph, k)]  # of other forms
    found = [best, *dict.fromkeys((*others, *parted))][: top + 1]
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


def _by_parts(form: Form, sizes: Mapping[str, int], on: Target) -> list[GeneralKnobs]:
    """Return the fastest knobs for each length of the parts of a sum that another kernel joins.

    How much more blocks cost is what the model knows least of; they come with fewest stages too.
    """
    graph, found = form.graph, dict[GeneralKnobs, None]()
    options = form.choices(sizes)
    axes = {a.tile_key: a.dim for s in graph.spaces if not combines(graph, s) for a in s.reduced}
    lengths = {a: dict.fromkeys((*options[a], *more_parts(sizes[axes[a]]))) for a in sorted(axes)}
    for name, value in ((axis, v) for axis, own in lengths.items() for v in own):
        best, seen = explored(form, sizes, on, fixed={name: value})
        if seen[best] < inf:
            found |= {best: None, replace(best, stages=options["stages"][0]): None}
    return list(found)


def _around(form: Form, seen: Times, options: Options) -> Iterator[GeneralKnobs]:
    """Yield the fastest knobs seen with other threads and stages together."""
    first = sorted((k for k in seen if seen[k] < inf), key=lambda k: seen[k])[:AROUND]
    for k, threads, stages in product(first, options["threads"], options["stages"]):
        yield form.knobs({**dict(k.cuts), "threads": threads, "stages": stages})


def _spread(form: Form, options: Options) -> Iterator[GeneralKnobs]:
    """Yield some of all knobs, spread evenly: the descent sees what is near its way only."""
    count = prod(map(len, options.values()))
    for i in range(min(count, SPREAD)):
        at, chosen = int(count * (i * STRIDE % 1.0)), {}
        for name, values in options.items():
            at, place = divmod(at, len(values))
            chosen[name] = values[place]
        yield form.knobs(chosen)


def _distance(knobs: GeneralKnobs, others: list[GeneralKnobs]) -> float:
    """Return how far knobs are from the nearest of others, in doublings of tiles and threads.

    Those of another form are infinitely far.
    """
    alike = (k for k in others if k.reduction_kernel == knobs.reduction_kernel)
    return min((sum(_steps(knobs, other)) for other in alike), default=inf)


def _steps(a: GeneralKnobs, b: GeneralKnobs) -> Iterator[float]:
    for (_, one), (_, other) in zip(a.cuts, b.cuts, strict=True):
        yield abs(log2(one / other))
    yield abs(log2(a.threads / b.threads))
    yield abs(a.stages - b.stages) / 2


def _runs(graph: Graph, knobs: GeneralKnobs) -> bool:
    try:
        require_same(tiled(graph, knobs), knobs.threads, knobs.stages)
    except MirageError:
        return False
    return True


def fits(graph: Graph, knobs: GeneralKnobs, size: int, on: Target) -> bool:
    """Say whether knobs that were measured are of a muGraph's axes and leave blocks room."""
    sizes = sizes_for(graph, roles_of(graph).counted, size)
    named = {"threads", "stages", *(name for name, _ in knobs.cuts)}
    with suppress(PlanError):
        form = form_of(graph, knobs)
        return named == choices(form, sizes).keys() and predict(graph, knobs, sizes, on) < inf
    return False
