"""Neighbouring dims that a program never tells apart, as one: fewer sums, longer rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from math import prod

from mirage_kernels.generator.frontend.dim_names import renamed
from mirage_kernels.generator.frontend.positional.lower import Layout, Lowered, flat, sizes_of
from mirage_kernels.generator.ir import Dim, Graph, Node, TensorType
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS
from mirage_kernels.generator.recipe import LARGEST_STATIC


def gaps_of(layout: Layout, sizes: Mapping[str, int], strides: Sequence[int]) -> set[str]:
    """Return the dims in front of which a tensor has a gap: they are no part of a longer row."""
    rows = [
        (stride, prod(sizes[d] for d in row), row)
        for row, stride in zip(layout, strides, strict=False)
        if row
    ]
    stored = sorted(rows, key=lambda one: -one[0])
    return {inner[2][0] for outer, inner in pairwise(stored) if outer[0] != inner[0] * inner[1]}


def behind(layout: Layout, place: int, dynamic: Collection[str]) -> list[int]:
    """Return the places behind that of a dynamic dim which may have parts of it."""
    places = range(place + 1, len(layout))
    return [*takewhile(lambda i: not {*layout[i][:1]} & {*dynamic}, places)]


def lies_apart(layout: Layout, strides: Sequence[int]) -> bool:
    """Say whether no two elements of a tensor are neighbours: every other one of a row, say."""
    return min((s for row, s in zip(layout, strides, strict=False) if row), default=1) > 1


def are_rows(layout: Layout, dynamic: Sequence[str]) -> bool:
    """Say whether a tensor has rows of a dynamic number: schedules take those as they lie."""
    return len(layout) == 2 and layout[0] == (*dynamic[:1],)


def merged(lowered: Lowered, kept: Collection[str], gaps: Collection[str] = ()) -> Lowered:
    """Return a graph in which no two neighbouring dims could be one, but for `kept` ones.

    Some tensor has a gap in front of the dims in `gaps`, which are no others' inner part. Two
    static dims are one where every input and result has them side by side or not at all, and
    what sums along one sums along the other next. The first takes the name and both places.
    """
    for outer, inner in _neighbours(lowered.graph):
        sizes = sizes_of(lowered.graph)
        if (
            outer in kept
            or inner in kept
            or inner in gaps
            or sizes[outer] * sizes[inner] > LARGEST_STATIC
        ):
            continue
        one = with_one(lowered, outer, inner)
        if one is not None:
            return merged(one, kept, gaps)
    return lowered


def with_one(lowered: Lowered, outer: str, inner: str) -> Lowered | None:
    """Return a graph where two dims are one; None where they are not side by side everywhere."""
    if not all(_next(x, outer, inner) for x in (*lowered.inputs, *lowered.outputs)):
        return None
    graph = _with_one(lowered.graph, outer, inner)
    if graph is None:
        return None
    layouts = (tuple(_without(x, inner) for x in t) for t in (lowered.inputs, lowered.outputs))
    return Lowered(graph, *layouts)


def grouped(lowered: Lowered, kept: Collection[str]) -> Lowered:
    """Return a graph in which dims of 8-bit weights are one though scales have the outer alone.

    To the graph such a scale has an element for each of a weight; in memory it has one for a group
    of neighbours. Dims that are `kept` stay as they are.
    """
    of_weights = (n.out.type for n in lowered.graph.inputs if n.out.type.dtype in EIGHT_BITS)
    pairs = dict.fromkeys(pair for type_ in of_weights for pair in pairwise(type_.names))
    for outer, inner in pairs:
        sizes = sizes_of(lowered.graph)
        apart = {outer, inner} & {*kept} or sizes[outer] * sizes[inner] > LARGEST_STATIC
        one = None if apart else _spread(lowered, outer, inner)
        if one is not None and (one := with_one(one, outer, inner)) is not None:
            plain = inner.rstrip("0123456789_")
            name = plain if plain and plain not in sizes_of(one.graph) else inner
            return grouped(renamed(one, {outer: name}), kept)
    return lowered


def _spread(lowered: Lowered, outer: str, inner: str) -> Lowered | None:
    """Return a graph where inputs with the outer of two dims have both; None if there are none."""
    graph, sizes = lowered.graph, sizes_of(lowered.graph)
    few = [n for n in graph.inputs if outer in n.out.type.names and inner not in n.out.type.names]
    repeated = {d for n in graph.inputs for d, _ in n.grouped if n not in few}
    users = [u for n in few for u in graph.users(n.name)]
    apart = any(not {outer, inner} <= {*u.out.type.names} for u in users)
    summed = any(n.op == "sum" for n in graph.nodes)  # else weights are converted alone
    if not few or apart or not summed or {outer, inner} & repeated:
        return None
    nodes = list[Node]()
    own = dict(zip([n.name for n in graph.inputs], lowered.inputs, strict=True))
    for node in graph.nodes:
        if node in few:
            row = _behind(node.out.type.names, outer, inner)
            dims = tuple(Dim(d, sizes[d]) for d in row)
            groups = dict(node.grouped)
            groups[outer] = groups.get(outer, 1) * sizes[inner]
            value = replace(node.out, type=replace(node.out.type, dims=dims))
            node = replace(node, outs=(value,), grouped=tuple(groups.items()))
            own[node.name] = tuple(_behind(x, outer, inner) for x in own[node.name])
        nodes.append(node)
    return Lowered(replace(graph, nodes=tuple(nodes)), tuple(own.values()), lowered.outputs)


def _behind(dims: tuple[str, ...], outer: str, inner: str) -> tuple[str, ...]:
    """Return dims with the inner behind the outer one, where they have that."""
    return tuple(x for d in dims for x in ((d, inner) if d == outer else (d,)))


def as_one(lowered: Lowered, dims: Sequence[str], gaps: Collection[str]) -> Lowered | None:
    """Return a graph where neighbouring dims are one; None where they cannot be (`merged`)."""
    one: Lowered | None = lowered
    for inner in dims[1:]:
        one = with_one(one, dims[0], inner) if one and inner not in gaps else None
    return one


def without_ones(lowered: Lowered, kept: Collection[str]) -> Lowered:
    """Return a graph without dims of one element that nothing is summed along, but for `kept`."""
    graph, sizes = lowered.graph, sizes_of(lowered.graph)
    used = {*kept, *(node.over for node in graph.nodes)}
    for dim in (d for d, size in sizes.items() if size == 1 and d not in used):
        nodes = tuple(
            replace(n, outs=tuple(replace(v, type=_shorter(v.type, dim)) for v in n.outs))
            for n in graph.nodes
        )
        graph = replace(graph, nodes=nodes)
        layouts = (tuple(_without(x, dim) for x in t) for t in (lowered.inputs, lowered.outputs))
        lowered = Lowered(graph, *layouts)
    return lowered


def _shorter(type_: TensorType, dim: str) -> TensorType:
    return replace(type_, dims=tuple(d for d in type_.dims if d.name != dim))


def _neighbours(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield each pair of dims that lie side by side in an input, once."""
    pairs = (pair for n in graph.inputs for pair in pairwise(n.out.type.names))
    yield from dict.fromkeys(pairs)


def _next(layout: Layout, outer: str, inner: str) -> bool:
    """Say whether a tensor has neither dim, or one behind the other as the function sees it."""
    names = flat(layout)
    return (outer in names) == (inner in names) and (
        inner not in names or names.index(inner) == names.index(outer) + 1
    )


def _without(layout: Layout, inner: str) -> Layout:
    return tuple(tuple(d for d in row if d != inner) for row in layout)


def _with_one(graph: Graph, outer: str, inner: str) -> Graph | None:
    """Return a graph where two dims are one; None where it tells them apart."""
    pair, nodes, halves = {outer, inner}, list[Node](), dict[str, Node]()
    for node in graph.nodes:
        if node.over in pair:
            if not node.args:  # positions, or an extent
                return None
            if node.args[0] in halves:  # the second of two sums is both
                first = halves[node.args[0]]
                node = replace(node, op=first.op, args=first.args, over=outer)
            elif _sums_on(graph, node, pair):
                halves[node.name] = node
                continue
            else:
                return None
        elif not _side_by_side(graph, node, outer, inner):
            return None
        outs = (replace(v, type=_typed(v.type, outer, inner)) for v in node.outs)
        nodes.append(replace(node, outs=tuple(outs)))
    return replace(graph, nodes=tuple(nodes))


def _sums_on(graph: Graph, node: Node, pair: Collection[str]) -> bool:
    """Say whether a sum along one of two dims is summed along the other, and nothing else."""
    users = graph.users(node.name)
    alone = len(users) == 1 and node.name not in graph.outputs
    sums = node.op in ("sum", "contract") and all(n.op == "sum" for n in users)
    return alone and sums and all(n.over in pair for n in (node, *users))


def _side_by_side(graph: Graph, node: Node, outer: str, inner: str) -> bool:
    """Say whether a value has two dims or none of them; in device memory side by side."""
    names = node.out.type.names
    if outer not in names or inner not in names:
        return outer not in names and inner not in names
    stored = node.op == "input" or node.name in graph.outputs
    return not stored or names.index(inner) == names.index(outer) + 1


def _typed(type_: TensorType, outer: str, inner: str) -> TensorType:
    if inner not in type_.names:
        return type_
    size = type_.dim(outer).size * type_.dim(inner).size
    dims = (Dim(outer, size) if d.name == outer else d for d in type_.dims if d.name != inner)
    return replace(type_, dims=tuple(dims))
