"""Extents and tiles that a chosen muGraph is proved at beside the quick small ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from mirage_kernels.generator.ir import Graph
from mirage_kernels.generator.search.verify import Case, tiles_of

MOST_ELEMENTS = 100_000_000  # of all inputs together, in a draw at full extents
_EDGE = 5  # elements of the last, uneven tile


def full_cases(graph: Graph) -> list[Case]:
    """Return cases at a muGraph's own tiles: full static extents, uneven edges, a single tile.

    Dynamic dims have a tile and an uneven edge, or two where they are summed along: what only
    numbers rows or problems is the same in every tile.
    """
    tiles = tiles_of(graph)
    whole = _largest_tiles(graph)
    dims = {d.name: d for n in graph.inputs for d in n.out.type.dims}
    kept = set(_spoken_of(graph))
    rows = {d for d in whole if dims[d].dynamic and d not in kept}
    several = {
        d: min(n + min(_EDGE, max(n - 1, 1)) if d in rows else 2 * n + _EDGE, dims[d].size)
        for d, n in whole.items()
    }
    full = {name: several.get(name, 2) if d.dynamic else d.size for name, d in dims.items()}
    full = affordable(graph, full, whole)
    uneven = {name: several.get(name, d.size if not d.dynamic else 2) for name, d in dims.items()}
    single = {name: min(whole.get(name, 1), full[name]) for name in dims}
    for name, dim in dims.items():
        if name not in whole and not dim.dynamic:
            single[name] = dim.size
    distinct = {tuple(sizes.items()): sizes for sizes in (full, uneven, single)}
    return [Case(tiles, sizes) for sizes in distinct.values()]


def affordable(graph: Graph, sizes: Mapping[str, int], tiles: Mapping[str, int]) -> dict[str, int]:
    """Return extents for a draw: those given, or fewer rows where inputs would be too large.

    Rows are what a dim numbers that nothing sums along: every block does the same with its own.
    Two tiles of them and an edge are left; what is summed along keeps its extent.
    """
    elements = sum(prod(sizes[d] for d in n.out.type.names) for n in graph.inputs)
    if elements <= MOST_ELEMENTS:
        return dict(sizes)
    kept = set(_spoken_of(graph))
    return {
        d: n if d in kept or d not in tiles else min(n, 2 * tiles[d] + _EDGE)
        for d, n in sizes.items()
    }


def _spoken_of(graph: Graph) -> Iterator[str]:
    """Yield the dims that are summed along or looped over, and those whose extents count."""
    for node in graph.nodes:
        yield node.over
        if node.body is not None:
            yield from _spoken_of(node.body)
    if graph.space is not None and graph.space.loop is not None:
        yield graph.space.loop.dim


def _largest_tiles(graph: Graph) -> dict[str, int]:
    """Return the largest tile of each dim that is cut; a split's part where there is one."""
    largest: dict[str, int] = {}
    for node in graph.blocks:
        assert node.body is not None
        assert node.body.space is not None
        for axis in node.body.space.axes:
            largest[axis.dim] = max(largest.get(axis.dim, 1), axis.tile)
    return largest
