"""A problem without what no cheapest choice needs: ways without operands, unwanted moves, and forms
that another form serves as well.

    a form of an item is dropped if another way of the item, at no more cost, makes a form from
    which every move that started at the first one leads to the same goal at no more cost
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from mirage_kernels.generator.plan.integer_program import Held, Problem, Way, Work


def pruned(problem: Problem) -> Problem:
    """Return an equally cheap problem with fewer ways and moves."""
    while True:
        smaller = _without_worse(_without_useless(problem))
        if smaller == problem:
            return problem
        problem = smaller


def _without_useless(problem: Problem) -> Problem:
    """Drop ways whose needs nothing makes, and moves that nobody wants."""
    ways = (*chain.from_iterable(problem.items.values()), *problem.moves)
    made = {h for w in ways for h in w.makes}
    wanted = {h for w in ways for h in w.needs}
    items = {
        item: tuple(w for w in found if set(w.needs) <= made)
        for item, found in problem.items.items()
    }
    moves = tuple(m for m in problem.moves if set(m.needs) <= made and set(m.makes) & wanted)
    return replace(problem, items=items, moves=moves)


def _without_worse(problem: Problem) -> Problem:
    """Drop ways that are worse than another way of their item."""
    moves: dict[Held, list[Way]] = {}
    for move in problem.moves:
        moves.setdefault(move.needs[0], []).append(move)
    direct = {h for ways in problem.items.values() for w in ways for h in w.needs}
    return replace(
        problem,
        items={item: _kept(ways, moves, direct) for item, ways in problem.items.items()},
    )


def _kept(
    ways: Sequence[Way], moves: Mapping[Held, Sequence[Way]], direct: set[Held]
) -> tuple[Way, ...]:
    kept: list[Way] = []
    for way in ways:
        if any(_as_good(other, way, moves, direct) for other in kept):
            continue
        kept = [k for k in kept if not _as_good(way, k, moves, direct)]
        kept.append(way)
    return tuple(kept)


def _as_good(a: Way, b: Way, moves: Mapping[Held, Sequence[Way]], direct: set[Held]) -> bool:
    """Say whether `a` may stand for `b` in every choice."""
    if a.needs != b.needs or a.mode != b.mode or not _no_more(a, b):
        return False
    return all(
        held in a.makes or (held not in direct and _serves(a.makes, moves.get(held, ()), moves))
        for held in b.makes
    )


def _serves(
    makes: Sequence[Held], wanted: Sequence[Way], moves: Mapping[Held, Sequence[Way]]
) -> bool:
    own = [m for held in makes for m in moves.get(held, ())]
    return all(any(m.makes == w.makes and _no_more(m, w) for m in own) for w in wanted)


def _no_more(a: Way, b: Way) -> bool:
    return set(a.latencies) <= set(b.latencies) and _less(a.work, b.work)


def _less(a: Work, b: Work) -> bool:
    cheaper = all(c <= b.cycles.get(r, 0.0) for r, c in a.cycles.items())
    return cheaper and a.registers <= b.registers and a.shared_bytes <= b.shared_bytes
