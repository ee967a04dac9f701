"""Proofs of positional programs: equal to a recipe on random elements of a finite field.

The program runs on tensors whose dims may be split into factors, the recipe on the same numbers
with those factors put together again. Extents are scaled down first (`scaled`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mirage_kernels.generator.errors import GraphError, UndefinedError, VerifyError
from mirage_kernels.generator.frontend.mirage.binding import Bound, Parts, Terms
from mirage_kernels.generator.frontend.mirage.scaled import Small, scaled, work_of
from mirage_kernels.generator.ir import Graph, Node
from mirage_kernels.generator.ir.infer import extents_of
from mirage_kernels.generator.meaning import arrays
from mirage_kernels.generator.meaning.arrays import Array, Part, array_reading
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


def prove(terms: Terms, bound: Bound) -> Proof:
    """Return the record of a program's proof; raise VerifyError where it is not equal.

    One draw at some sizes; then as many as the wanted failure bound takes at the largest size where
    so many are enough: sums of exp need sizes at which they have few terms.
    """
    full = extents_of([n.out.type for n in bound.graph.inputs])
    spec = terms.spec(bound.extents(full))
    done = []
    for seed, small in enumerate(ONCE, start=SEED):
        done.append(Comparison.at(small, spec, terms, bound).passed(seed))
    often = [Comparison.at(small, spec, terms, bound) for small in OFTEN]
    often = [c for c in often if draws_needed(c.chance) * c.chance <= LOG2_WANTED]
    if often:
        largest = max(often, key=lambda c: math.prod(c.bound.extents(c.sizes).values()))
        done.append(largest.passed(SEED + len(ONCE), draws_needed(largest.chance)))
    return Proof.of(done)


@dataclass(frozen=True)
class Comparison:
    """A program and a recipe's spec at some sizes: extents of the dims of both."""

    spec: Graph
    terms: Terms
    bound: Bound
    sizes: dict[str, int]

    @classmethod
    def at(cls, small: Small, spec: Graph, terms: Terms, bound: Bound) -> Comparison:
        """Scale a program down; raise VerifyError for what stays too large."""
        graph, sizes = scaled(bound.graph, small, bound.ties)
        if work_of(graph, sizes) > MOST_WORK:
            raise VerifyError(
                "the graph is too large to prove: it cuts dims that cannot be scaled down",
                "an axis cuts several dims, or the recipe gives one name to dims that are cut",
            )
        return cls(spec, terms, replace(bound, graph=graph), {**bound.extents(sizes), **sizes})

    @cached_property
    def chance(self) -> float:
        """Log2 of how likely one draw accepts a wrong program, at most."""
        return log2_chance(self.spec, self.bound.graph, self.sizes)

    def passed(self, first: int, draws: int = 1) -> Compared:
        """Return the record of draws from a first seed on; raise VerifyError where one differs."""
        for seed in range(first, first + draws):
            self.compare(seed)
        return Compared({}, self.sizes, first, draws, rounded_up(draws * self.chance))

    def compare(self, seed: int) -> None:
        """Run program and spec on the same random elements."""
        for retry in range(RETRIES):
            with contextlib.suppress(UndefinedError):  # the recipe divides by zero, by chance
                self.draw(seed + retry * RETRY_STRIDE)
                return
        raise VerifyError(f"the recipe divides by zero on {RETRIES} draws")

    def draw(self, seed: int) -> None:
        """Compare on one draw; raise UndefinedError where the recipe divides by zero."""
        graph, sizes, terms = self.bound.graph, self.sizes, self.terms
        has_exp = any(n.op == "exp" for n in (*self.spec.nodes, *nested_nodes(graph)))
        field = draw_field(seed, exponents=has_exp)
        arithmetic = field_arithmetic(field)
        rng = np.random.default_rng((seed, 2))
        inputs = [_drawn(n, sizes, field, rng) for n in graph.inputs]
        names = (name for name, _ in self.bound.choice.inputs)
        given = dict(zip(names, zip(inputs, self.bound.inputs, strict=True), strict=True))
        wanted = []
        for node in self.spec.inputs:
            if node.name in terms.held:
                wanted.append(_held(node, terms.held[node.name], sizes, arithmetic.number))
            else:
                wanted.append(merged(*given[node.name], node.out.type.names, sizes))
        reading = array_reading(arithmetic, sizes)
        right = results(self.spec, wanted, reading)
        try:
            made = results(graph, inputs, reading)
        except GraphError as error:
            raise VerifyError(f"the graph cannot be evaluated: {error.sentence}") from error
        for dims, a, b, parts in zip(terms.outputs, right, made, self.bound.outputs, strict=True):
            _require_same(a.over(dims), merged(b, parts, dims, sizes), seed)


def _drawn(node: Node, sizes: Sizes, field: Field, rng: np.random.Generator) -> Array:
    names = node.out.type.names
    return Array(names, random_parts(field, tuple(sizes[d] for d in names), rng))


def nested_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of the graphs inside it."""
    for node in graph.nodes:
        yield node
        if node.body is not None:
            yield from nested_nodes(node.body)


def merged(x: Array, parts_of: Parts, dims: tuple[str, ...], sizes: Sizes) -> Array:
    """Return a value of the program with the recipe's dims: factors put together."""
    parts = tuple(part for dim in dims for part in parts_of[dim])
    for spare in [d for d in x.dims if d not in parts]:  # of extent 1, nothing to the recipe
        x = Array(tuple(d for d in x.dims if d != spare), _without(x, spare), x.real)
    factors = tuple(sizes[p] for p in parts)
    extents = tuple(sizes[d] for d in dims)
    laid_out = (np.broadcast_to(p, factors).reshape(extents) for p in x.over(parts).parts)
    return Array(dims, tuple(laid_out), x.real)


def _without(x: Array, dim: str) -> arrays.Parts:
    return tuple(np.take(p, 0, axis=x.dims.index(dim)) for p in x.parts)


def _held(
    node: Node, value: float | str, sizes: Sizes, number: Callable[[Part], arrays.Parts]
) -> Array:
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
