"""Proofs of positional programs: equal to a recipe on random elements of a finite field.

The program runs on tensors whose dims may be split into factors, the recipe on the same numbers
with those factors put together again. Extents are scaled down first (`scaled`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mirage_kernels.generator.errors import GraphError, UndefinedError, VerifyError
from mirage_kernels.generator.frontend.mirage.binding import Bound, Held, Pair
from mirage_kernels.generator.frontend.mirage.scaled import Small, scaled, work_of
from mirage_kernels.generator.ir import Graph, Node
from mirage_kernels.generator.meaning.arrays import Array, Part, Parts, array_reading
from mirage_kernels.generator.meaning.field import (
    Field,
    draw_field,
    field_arithmetic,
    random_parts,
)
from mirage_kernels.generator.meaning.walk import results
from mirage_kernels.generator.search.verify import (
    LOG2_WANTED,
    RETRIES,
    RETRY_STRIDE,
    Compared,
    Proof,
    draws_needed,
    log2_chance,
    rounded_up,
)

SEED = 4100
ONCE = (Small(3, 2, whole=(3, 4, 5)), Small(1, 3, whole=(1, 2, 3)))
OFTEN = (
    Small(2, 2, whole=(2, 3, 4)),
    Small(1, 2, whole=(1,)),
    Small(2, 1, whole=(1,)),
    Small(1, 1, whole=(3,)),
    Small(1, 1, whole=(2,)),
    Small(1, 1, whole=(1,)),
)
MOST_WORK = 4_000_000  # as `work_of` counts it

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Goal:
    """What a program shall be equal to: a spec, the dims of its results, inputs held at a value."""

    spec: Graph
    outputs: tuple[tuple[str, ...], ...]
    held: Held


def prove(goal: Goal, bound: Bound) -> Proof:
    """Return the record of a program's proof; raise VerifyError where it is not equal.

    One draw at some sizes; then as many as the wanted failure bound takes at the largest size where
    so many are enough: sums of exp need sizes at which they have few terms.
    """
    done = []
    for number, small in enumerate(ONCE):
        made, sizes = _scaled(bound, small)
        compare(goal, made, sizes, seed=SEED + number)
        chance = log2_chance(goal.spec, made.graph, sizes)
        done.append(Compared({}, sizes, SEED + number, 1, rounded_up(chance)))
    often = _boundable(goal, bound)
    if often is not None:
        made, sizes, chance = often
        draws, first = draws_needed(chance), SEED + len(ONCE)
        for seed in range(first, first + draws):
            compare(goal, made, sizes, seed=seed)
        done.append(Compared({}, sizes, first, draws, rounded_up(draws * chance)))
    return Proof.of(done)


def _boundable(goal: Goal, bound: Bound) -> tuple[Bound, dict[str, int], float] | None:
    """Return the largest sizes at which few draws reach the bound, with log2 of one draw's."""
    found = []
    for small in OFTEN:
        made, sizes = _scaled(bound, small)
        chance = log2_chance(goal.spec, made.graph, sizes)
        if draws_needed(chance) * chance <= LOG2_WANTED:
            found.append((made, sizes, chance))
    return max(found, key=lambda f: math.prod(f[0].extents(f[1]).values()), default=None)


def _scaled(bound: Bound, small: Small) -> tuple[Bound, dict[str, int]]:
    """Return a bound program at small tiles, and the extents of its dims and the recipe's."""
    graph, sizes = scaled(bound.graph, small, bound.ties)
    if work_of(graph, sizes) > MOST_WORK:
        raise VerifyError(
            "the graph is too large to prove: it cuts dims that cannot be scaled down",
            "an axis cuts several dims, or the recipe gives one name to dims that are cut",
        )
    return replace(bound, graph=graph), {**bound.extents(sizes), **sizes}


def compare(goal: Goal, bound: Bound, sizes: Sizes, *, seed: int) -> None:
    """Run program and spec on the same random elements; raise VerifyError where they differ."""
    for retry in range(RETRIES):
        with contextlib.suppress(UndefinedError):  # the recipe divides by zero, by chance
            _compare(goal, bound, sizes, seed + retry * RETRY_STRIDE)
            return
    raise VerifyError(f"the recipe divides by zero on {RETRIES} draws")


def _compare(goal: Goal, bound: Bound, sizes: Sizes, seed: int) -> None:
    has_exp = any(n.op == "exp" for n in (*goal.spec.nodes, *nested_nodes(bound.graph)))
    field = draw_field(seed, exponents=has_exp)
    arithmetic = field_arithmetic(field)
    rng = np.random.default_rng((seed, 2))
    inputs = [_drawn(n, sizes, field, rng) for n in bound.graph.inputs]
    given = {pair.name: (x, pair) for x, pair in zip(inputs, bound.inputs, strict=True)}
    wanted = []
    for node in goal.spec.inputs:
        if node.name in goal.held:
            wanted.append(_held(node, goal.held[node.name], sizes, arithmetic.number))
        else:
            wanted.append(merged(*given[node.name], node.out.type.names, sizes))
    reading = array_reading(arithmetic, sizes)
    right = results(goal.spec, wanted, reading)
    try:
        made = results(bound.graph, inputs, reading)
    except GraphError as error:
        raise VerifyError(f"the graph cannot be evaluated: {error.sentence}") from error
    for dims, a, b, pair in zip(goal.outputs, right, made, bound.outputs, strict=True):
        _require_same(a.over(dims), merged(b, pair, dims, sizes), seed)


def _drawn(node: Node, sizes: Sizes, field: Field, rng: np.random.Generator) -> Array:
    names = node.out.type.names
    return Array(names, random_parts(field, tuple(sizes[d] for d in names), rng))


def nested_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for node in graph.nodes:
        yield node
        if node.body is not None:
            yield from nested_nodes(node.body)


def merged(x: Array, pair: Pair, dims: tuple[str, ...], sizes: Sizes) -> Array:
    """Return a value of the program with the recipe's dims: factors put together."""
    parts = tuple(part for dim in dims for part in pair.parts[dim])
    for spare in [d for d in x.dims if d not in parts]:  # of extent 1, nothing to the recipe
        x = Array(tuple(d for d in x.dims if d != spare), _without(x, spare), x.real)
    factors = tuple(sizes[p] for p in parts)
    extents = tuple(sizes[d] for d in dims)
    laid_out = (np.broadcast_to(p, factors).reshape(extents) for p in x.over(parts).parts)
    return Array(dims, tuple(laid_out), x.real)


def _without(x: Array, dim: str) -> Parts:
    return tuple(np.take(p, 0, axis=x.dims.index(dim)) for p in x.parts)


def _held(node: Node, value: float | str, sizes: Sizes, number: Callable[[Part], Parts]) -> Array:
    """Return an input that is the same number everywhere."""
    names = node.out.type.names
    number_held = sizes[value] if isinstance(value, str) else value
    full = np.full([sizes[d] for d in names], number_held)
    if node.out.type.dtype.is_real:
        return Array(names, number(full))
    return Array(names, (full.astype(np.int64),), real=False)


def _require_same(right: Array, made: Array, seed: int) -> None:
    same = np.broadcast_to(right.parts[0], made.parts[0].shape) == made.parts[0]
    if same.all():
        return
    place = np.unravel_index(int(np.argmin(same)), same.shape)
    where = ", ".join(f"{d}={int(i)}" for d, i in zip(right.dims, place, strict=True))
    raise VerifyError(
        f"not equal: {int((~same).sum())} of {same.size} results differ, first at {where} "
        f"(seed {seed})"
    )
