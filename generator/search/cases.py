"""What a muGraph is proved at: extents and tile sizes, small ones and its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from mirage_kernels.generator.ir import Axis, DType, Graph, Kind, ops_of_kind, parts_of

FEWER = ((3, 1, 2), (2, 1, 1))  # extents, tiles and parts of dims that powers are summed along
MOST_ELEMENTS = 2**22  # of all inputs together, in a draw at full extents
MOST_BETWEEN = 4_000_000  # of a value between them and the results, where it is larger than they
MOST_PRODUCTS = 2**28  # that a contraction sums: some seconds
MOST_SUMMED = 2**27  # from there on, summed dims are cut down too: a GiB for each value
_EDGE = 5  # elements of the last, uneven tile


@dataclass(frozen=True)
class Case:
    """What draws are made for: the muGraph at these tile sizes, tensors of these extents.

    A `bounded` case is drawn until the failure bound is reached, any other once.
    """

    tiles: dict[str, int]
    sizes: dict[str, int]
    bounded: bool = False


def seen_dims(spec: Graph) -> tuple[str, ...]:
    """Return the names of all dims of a spec, in order of appearance."""
    names = [d for n in spec.nodes for v in n.outs for d in v.type.names]
    return tuple(dict.fromkeys(names))


def summed_dims(spec: Graph) -> frozenset[str]:
    """Return the dims that a spec sums along, or takes maxima along."""
    return frozenset(n.over for n in spec.of(*ops_of_kind(Kind.REDUCE, Kind.CONTRACT)))


def crowded_dims(spec: Graph) -> frozenset[str]:
    """Return the dims along which a spec sums different powers: each adds terms to the sum."""
    varies: dict[str, frozenset[str]] = {}
    crowded: set[str] = set()
    for node in spec.nodes:
        dims = frozenset[str]().union(*(varies[a] for a in node.args))
        if node.op == "exp":
            dims = frozenset(node.out.type.names)
        if node.over in dims:
            crowded.add(node.over)
        varies.update({v.name: dims - {node.over} for v in node.outs})
    return frozenset(crowded)


def tiles_of(graph: Graph) -> dict[str, int]:
    """Return the tile sizes of a muGraph by `Axis.tile_key`."""
    return {axis.tile_key: axis.tile for axis in _axes(graph)}


def small_cases(spec: Graph) -> list[Case]:
    """Return cases for a proof at small tiles: within a single tile, uneven, even.

    The first is the quickest to reject what is wrong. The uneven one has two tiles along every
    dim, three along those that are summed along, two parts of which the first has two tiles. No two
    tiles are the same, so that none can be confused; but sums of powers are short (2). With exp
    many draws are needed: made where only the dims that are summed along are cut.
    """
    names, crowded, summed = seen_dims(spec), crowded_dims(spec), summed_dims(spec)
    others = [d for d in names if d not in crowded]
    tiles = {d: 2 + i for i, d in enumerate(others)} | dict.fromkeys(sorted(crowded), 2)
    tiles |= {parts_of(d): tiles[d] + 1 for d in sorted(summed)}
    of_dims = {d: tiles[d] for d in names}
    single = {d: n if d in crowded else max(1, n - 1) for d, n in of_dims.items()}
    uneven = {d: 2 * n + 1 if d in summed else n + (n + 1) // 2 for d, n in of_dims.items()}
    even = {d: 2 * n for d, n in of_dims.items()}
    cases = [Case(tiles, single), Case(tiles, uneven, bounded=not crowded), Case(tiles, even)]
    if crowded:
        # Long dims of lengths and positions let every draw have every length.
        ints = [spec.values[name].type for name in spec.whole]
        dims = sorted({d for type_ in ints for d in type_.names} - summed)
        rows = dict.fromkeys(dims, max(uneven[d] for d in crowded))
        sums = {d: uneven[d] for d in summed}
        cases[1:1] = [Case(tiles | rows, single | sums | rows, bounded=True)]
    # Masks leave something: there are no more places to see from than to see.
    counted = {n.over for n in spec.of("iota", "size") if n.out.type.dtype is DType.INT32}
    found = []
    for case in cases:
        places = [case.sizes[d] for d in crowded & counted] or [max(case.sizes.values(), default=1)]
        sizes = {d: min(n, *places) if d in counted - crowded else n for d, n in case.sizes.items()}
        found.append(replace(case, sizes=sizes))
    return found


def smaller(spec: Graph, case: Case) -> Iterator[Case]:
    """Yield what to draw instead where sums are too long for a bound, or those with exp are.

    A tile and one element are as many passes of a loop as two tiles are, and sums half as long.
    """
    crowded = crowded_dims(spec)
    if case.bounded and not crowded:
        cut = {d: case.tiles[d] + 1 for d in summed_dims(spec) if d in case.tiles}
        if cut:
            yield Case(case.tiles, {**case.sizes, **cut}, bounded=True)
    for size, tile, part in FEWER if case.bounded and crowded else ():
        sizes, tiles = dict(case.sizes), dict(case.tiles)
        for dim in crowded:
            sizes[dim], tiles[dim], tiles[parts_of(dim)] = size, tile, part
        yield Case(tiles, sizes, bounded=True)


def full_cases(graph: Graph) -> list[Case]:
    """Return cases at a muGraph's own tiles: full static extents, uneven edges, a single tile.

    Inputs have at most MOST_ELEMENTS, where cutting dims down leaves so few.

    Uneven and dynamic dims have a tile and an edge, or two where they are summed along: what only
    numbers rows or problems is the same in every tile.
    """
    # The largest tile of each dim that is cut; a split's part where there is one.
    whole = {a.dim: a.tile for a in sorted(_axes(graph), key=lambda a: a.tile)}
    dims = {d.name: d for n in graph.inputs for d in n.out.type.dims}
    kept = _counted_dims(graph)
    full, uneven, single = dict[str, int](), dict[str, int](), dict[str, int]()
    for name, dim in dims.items():
        full[name] = 2 if dim.dynamic else dim.size
        uneven[name] = full[name]
        if name in whole:
            tile = whole[name]
            more = 2 * tile + _EDGE if name in kept else tile + _edge(tile)
            uneven[name] = min(more, dim.size)
            full[name] = uneven[name] if dim.dynamic else dim.size
    full = affordable(graph, full, whole, MOST_PRODUCTS)
    for name, dim in dims.items():
        uncut = 1 if dim.dynamic else dim.size
        single[name] = min(whole[name], full[name]) if name in whole else uncut
    distinct = {tuple(sizes.items()): sizes for sizes in (full, uneven, single)}
    return [Case(tiles_of(graph), sizes) for sizes in distinct.values()]


def bounded(
    graph: Graph, sizes: Mapping[str, int], levels: Sequence[int], most: int
) -> dict[str, int]:
    """Return extents of which no value of a graph has more than `most` elements.

    The longest dims of those that have more are made as long as the next of `levels`, which fall.
    """
    made = dict(sizes)
    for type_ in (v.type for v in graph.values.values()):
        while prod(made[d] for d in type_.names) > most:
            longest = max(type_.names, key=made.__getitem__)
            shorter = [n for n in levels if n < made[longest]]
            if not shorter:
                break
            made[longest] = shorter[0]
    return made


def affordable(
    graph: Graph, sizes: Mapping[str, int], tiles: Mapping[str, int], most_products: float = inf
) -> dict[str, int]:
    """Return extents for a draw: those given, or fewer rows where it would be too large.

    Rows are what a dim numbers that nothing sums along: every block does the same with its own.
    Two tiles of them and an edge are left; what is summed along keeps its extent, unless that is
    too large still.
    """
    fewer, bodies = dict(sizes), [n.body for n in graph.blocks if n.body]
    values = [v.type.names for body in bodies for v in body.values.values()]
    products = [
        {*body.values[n.args[0]].type.names, *body.values[n.args[1]].type.names}
        for body in bodies
        for n in body.of("contract")
    ]

    def most(several: Iterable[Iterable[str]]) -> int:
        return max((prod(fewer.get(d, 1) for d in names) for names in several), default=0)

    for kept, limit, between, multiplied in (
        (_counted_dims(graph), MOST_ELEMENTS, MOST_BETWEEN, most_products),
        (set[str](), MOST_SUMMED, inf, inf),
    ):
        elements = sum(prod(fewer[d] for d in n.out.type.names) for n in graph.inputs)
        large = elements > limit or most(values) > max(elements, between)
        if large or most(products) > multiplied:
            cut = {d: 2 * tiles[d] + _edge(tiles[d]) for d in fewer if d in tiles and d not in kept}
            fewer |= {d: min(fewer[d], n) for d, n in cut.items()}
    return fewer


def _edge(tile: int) -> int:
    """Return the elements of a last, uneven tile of what only numbers rows or problems."""
    return min(_EDGE, max(tile - 1, 1))


def _counted_dims(graph: Graph) -> set[str]:
    """Return the dims that are summed along or looped over, and those whose extents count."""
    looped = {graph.space.loop.dim} if graph.space is not None and graph.space.loop else set()
    inner = [_counted_dims(n.body) for n in graph.nodes if n.body is not None]
    return looped.union({n.over for n in graph.nodes}, *inner)


def _axes(graph: Graph) -> list[Axis]:
    return [axis for space in graph.spaces for axis in space.axes]


def batch_dims(spec: Graph) -> frozenset[str]:
    """Return the dims that both operands of every contraction have: they number problems."""
    products = spec.of("contract")
    operands = [{*spec.values[name].type.names} for node in products for name in node.args]
    return frozenset(set.intersection(*operands) - summed_dims(spec)) if operands else frozenset()
