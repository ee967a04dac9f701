"""The same program at small extents: few elements per tile, few tiles per axis.

What a program does depends on extents only through its dims. A dim that no axis cuts becomes a few
elements, one that is cut a few tiles. Where two kernels cut it differently, the tiles of one are
still several of the other's. What divided evenly still does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_kernels.generator.frontend.positional.lower import sizes_of
from mirage_kernels.generator.ir import Axis, Graph, Node, Space, count, parts_of

ELEMENTS_PER_STEP = 20  # elements of a tensor that take as long as an operator on a small tile


@dataclass(frozen=True)
class Small:
    """How far to scale: elements of the smallest tile, tiles per axis, elements of dims not cut."""

    elements: int
    tiles: int
    whole: Sequence[int]  # in turn, dim by dim


Ties = Sequence[Sequence[tuple[str, ...]]]  # rows of dims whose extents must stay equal


def scaled(graph: Graph, small: Small, ties: Ties = ()) -> tuple[Graph, dict[str, int]]:
    """Return the graph with small tiles, and the extents of all its dims."""
    extents = sizes_of(graph)
    cuts: dict[str, list[int]] = {}
    for axis, _ in axes_of(graph):
        cuts.setdefault(axis.dim, []).append(axis.tile)
    groups = _groups(graph, ties)
    fixed = _fixed(graph, ties, set(cuts))
    sizes = dict(extents)
    tiles: dict[str, dict[int, int]] = {}
    for number, (dim, extent) in enumerate(extents.items()):
        group = groups.get(dim, {dim})
        if group & fixed:
            continue
        if dim not in cuts:
            first = next(d for d in extents if d in group)
            whole = small.whole[number % len(small.whole)]
            sizes[dim] = min(extent, whole) if dim == first else sizes[first]
            continue
        tiles[dim] = _small_tiles(cuts[dim], small.elements)
        largest = math.lcm(*cuts[dim])
        sizes[dim] = math.lcm(*tiles[dim].values()) * min(extent // largest, small.tiles)
    small_graph = replace(graph, nodes=tuple(_with_tiles(n, tiles) for n in graph.nodes))
    for axis, _ in axes_of(small_graph):
        if axis.reduced:
            sizes[parts_of(axis.dim)] = count(axis, sizes[axis.dim])
    return small_graph, sizes


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


def _groups(graph: Graph, ties: Ties) -> dict[str, set[str]]:
    """Return for each dim that is tied to others all those that must keep the same extent as it."""
    alike = [{axis.dim, *others} for axis, others in axes_of(graph) if others]
    alike += [{part for row in tie for part in row} for tie in ties]
    groups: dict[str, set[str]] = {}
    for one in alike:
        group = set(one).union(*(groups[d] for d in one if d in groups))
        groups.update(dict.fromkeys(group, group))
    return groups


def _fixed(graph: Graph, ties: Ties, cut: set[str]) -> set[str]:
    """Return dims whose extents stay as they are: no rule says how to scale them and their like.

    These are dims that one axis cuts into equally many tiles, and tied rows that are cut or consist
    of several dims.
    """
    fixed = {d for axis, others in axes_of(graph) if others for d in (axis.dim, *others)}
    for tie in ties:
        parts = {part for row in tie for part in row}
        if parts & cut or any(len(row) != 1 for row in tie):
            fixed |= parts
    return fixed


def work_of(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Return how many elements the largest tensor has, or what running all tiles costs as much."""
    most = max(math.prod(sizes[d] for d in v.type.names) for n in graph.nodes for v in n.outs)
    steps = 0
    for body in (n.body for n in graph.blocks if n.body):
        axes = body.space.axes if body.space else ()
        steps += math.prod(count(a, sizes[a.dim]) for a in axes) * len(body.nodes)
    return max(most, ELEMENTS_PER_STEP * steps)


def axes_of(graph: Graph) -> Iterator[tuple[Axis, set[str]]]:
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
