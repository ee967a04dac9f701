"""Proofs of positional programs: equal to a spec on random elements of a finite field.

Extents are scaled down first: few elements per tile, few tiles per axis. What a program does
depends on extents only through its dims. A dim that no axis cuts becomes a few elements, one that
is cut a few tiles. Where two kernels cut it differently, the tiles of one are still several of the
other's. What divided evenly still does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.errors import VerifyError
from mirage_kernels.generator.frontend.mirage.binding import Bound, Row
from mirage_kernels.generator.frontend.positional.lower import sizes_of
from mirage_kernels.generator.ir import Axis, Graph, Node, Space, count, parts_of
from mirage_kernels.generator.search.cases import Case
from mirage_kernels.generator.search.verify import (
    LOG2_WANTED,
    Compared,
    Proof,
    Prover,
    draws_needed,
    log2_chance,
    rounded_up,
)

SEED = 4100
FEW_DRAWS = 25  # where more are needed at one size, a smaller one may do with fewer
MOST_WORK = 4_000_000  # as `_work_of` counts it
ELEMENTS_PER_STEP = 20  # elements of a tensor that take as long as an operator on a small tile


@dataclass(frozen=True)
class Small:
    """How far to scale: elements of the smallest tile, tiles per axis, elements of dims not cut."""

    elements: int
    tiles: int
    whole: Sequence[int]  # in turn, dim by dim


ONCE = (Small(3, 2, whole=(3, 4, 5)), Small(1, 3, whole=(1, 2, 3)))
OFTEN = (
    Small(2, 2, whole=(2, 3, 4)),
    Small(1, 2, whole=(1,)),
    Small(2, 1, whole=(1,)),
    Small(1, 1, whole=(3,)),
    Small(1, 1, whole=(2,)),
    Small(1, 1, whole=(1,)),
)


def prove(bound: Bound) -> Proof:
    """Return the record of a program's proof; raise VerifyError where it is not equal.

    One draw at some sizes; then as many as the wanted failure bound takes at the largest size where
    few are enough: sums of exp need sizes at which they have few terms.
    """
    prover = Prover(bound.spec)
    done = []
    for seed, small in enumerate(ONCE, start=SEED):
        graph, sizes = scaled(bound.graph, small, bound.ties)
        prover.compare(graph, Case({}, sizes), seed=seed)
        chance = log2_chance(bound.spec, graph, sizes)
        done.append(Compared({}, sizes, seed, 1, rounded_up(chance)))
    often = [scaled(bound.graph, small, bound.ties) for small in OFTEN]
    enough: list[tuple[int, float, int]] = []  # draws, the chance of each, number of the size
    for number in sorted(range(len(often)), key=lambda i: -math.prod(often[i][1].values())):
        chance = log2_chance(bound.spec, *often[number])
        draws = draws_needed(chance)
        if draws * chance <= LOG2_WANTED:
            enough.append((draws, chance, number))
        if enough and draws <= FEW_DRAWS:
            break
    for draws, chance, number in sorted(enough)[:1]:
        graph, sizes = often[number]
        seeds = range(SEED + len(ONCE), SEED + len(ONCE) + draws)
        for seed in seeds:
            prover.compare(graph, Case({}, sizes), seed=seed)
        done.append(Compared({}, sizes, seeds[0], draws, rounded_up(draws * chance)))
    return Proof.of(done)


def scaled(
    graph: Graph, small: Small, ties: Sequence[Sequence[Row]] = ()
) -> tuple[Graph, dict[str, int]]:
    """Return the graph with small tiles, and the extents of all its dims.

    The rows of a tie keep equal extents. Raises VerifyError for a graph that stays too large.
    """
    extents = sizes_of(graph)
    cuts: dict[str, list[int]] = {}
    for axis, _ in _axes_of(graph):
        cuts.setdefault(axis.dim, []).append(axis.tile)
    groups, fixed = _groups(graph, ties, set(cuts))
    sizes = dict(extents)
    tiles: dict[str, dict[int, int]] = {}
    for number, (dim, extent) in enumerate(extents.items()):
        group = groups.get(dim, {dim})
        if group & fixed:
            continue
        if dim in cuts:
            tiles[dim] = _small_tiles(cuts[dim], small.elements)
            most = extent // math.lcm(*cuts[dim])
            sizes[dim] = math.lcm(*tiles[dim].values()) * min(most, small.tiles)
        elif dim == (first := next(d for d in extents if d in group)):
            sizes[dim] = min(extent, small.whole[number % len(small.whole)])
        else:
            sizes[dim] = sizes[first]
    made = replace(graph, nodes=tuple(_with_tiles(n, tiles) for n in graph.nodes))
    for axis, _ in _axes_of(made):
        if axis.reduced:
            sizes[parts_of(axis.dim)] = count(axis, sizes[axis.dim])
    if _work_of(made, sizes) > MOST_WORK:
        raise VerifyError(
            "the graph is too large to prove: it cuts dims that cannot be scaled down",
            "an axis cuts several dims, or the recipe gives one name to dims that are cut",
        )
    return made, sizes


def _groups(
    graph: Graph, ties: Sequence[Sequence[Row]], cut: set[str]
) -> tuple[dict[str, set[str]], set[str]]:
    """Return for tied dims all those that must keep the same extent, and dims that stay fixed.

    No rule says how to scale dims that one axis cuts into equally many tiles, nor tied rows that
    are cut or consist of several dims.
    """
    alike = [({axis.dim, *others}, True) for axis, others in _axes_of(graph) if others]
    for tie in ties:
        parts = {part for row in tie for part in row}
        alike.append((parts, bool(parts & cut) or any(len(row) != 1 for row in tie)))
    groups: dict[str, set[str]] = {}
    for dims, _ in alike:
        group = dims.union(*(groups[d] for d in dims if d in groups))
        groups.update(dict.fromkeys(group, group))
    return groups, {d for dims, stays in alike if stays for d in dims}


def _small_tiles(tiles: Sequence[int], elements: int) -> dict[int, int]:
    """Return a small tile for each: a few elements, twice those, ... if each divides the next.

    Other tiles keep their ratios.
    """
    ordered = sorted(set(tiles))
    least = min(elements, ordered[0])
    if all(b % a == 0 for a, b in itertools.pairwise(ordered)):
        return {tile: least * 2**i for i, tile in enumerate(ordered)}
    unit = math.gcd(*ordered)
    return {tile: tile // unit * min(elements, unit) for tile in ordered}


def _work_of(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Return how many elements the largest tensor has, or what running all tiles costs as much."""
    most = max(math.prod(sizes[d] for d in v.type.names) for n in graph.nodes for v in n.outs)
    steps = 0
    for body in (n.body for n in graph.blocks if n.body):
        axes = body.space.axes if body.space else ()
        steps += math.prod(count(a, sizes[a.dim]) for a in axes) * len(body.nodes)
    return max(most, ELEMENTS_PER_STEP * steps)


def _axes_of(graph: Graph) -> Iterator[tuple[Axis, set[str]]]:
    """Yield every axis of every block graph, and which other dims than its own it cuts."""
    for body in (n.body for n in graph.blocks if n.body):
        for i, axis in enumerate(body.space.axes if body.space else ()):
            named = ((*n.cuts, n.loop_cut)[i] for n in body.inputs)
            yield axis, {dim for dim in named if dim} - {axis.dim}


def _with_tiles(node: Node, tiles: Mapping[str, Mapping[int, int]]) -> Node:
    if node.body is None or node.body.space is None:
        return node

    def cut(axis: Axis) -> Axis:
        return replace(axis, tile=tiles.get(axis.dim, {}).get(axis.tile, axis.tile))

    grid, loop = map(cut, node.body.space.grid), node.body.space.loop
    space = Space(tuple(grid), cut(loop) if loop else None)
    return replace(node, body=replace(node.body, space=space))
