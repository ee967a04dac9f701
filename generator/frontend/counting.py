"""Numbers of a trace that count elements along a dynamic dim, as a mean does, become its extent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.frontend.positional.lower import Lowered, sizes_of
from mirage_kernels.generator.ir import Graph, Node


def with_sizes(first: Lowered, longer: Lowered, dynamic: Sequence[str]) -> tuple[Lowered, Lowered]:
    """Return two traces where a number that counts elements along a dynamic dim is that.

    It is the same multiple of the extent of one dynamic dim in both.
    """
    sizes, others = sizes_of(first.graph), sizes_of(longer.graph)
    for mine, theirs in zip(first.graph.nodes, longer.graph.nodes, strict=False):
        if not (mine.op == theirs.op == "const" and mine.value != theirs.value):
            continue
        times = {d: mine.value / sizes[d] for d in dynamic if d in sizes}
        found = [(d, n) for d, n in times.items() if n * others.get(d, 0) == theirs.value]
        if len(found) == 1 and found[0][1].is_integer():
            first = replace(first, graph=_counted(first.graph, mine, *found[0]))
            longer = replace(longer, graph=_counted(longer.graph, theirs, *found[0]))
    return first, longer


def _counted(graph: Graph, old: Node, dim: str, times: float) -> Graph:
    """Return a graph where a number is the extent of a dim so many times."""
    (out,) = old.outs
    size, factor = (replace(out, name=f"{out.name}_{end}") for end in (dim, "times"))
    count = [Node("size", (), (size,), over=dim), replace(old, outs=(factor,), value=times)]
    new = [*count, Node("mul", (size.name, factor.name), (out,))]
    if times == 1:
        new = [Node("size", (), (out,), over=dim)]
    nodes = (made for n in graph.nodes for made in (new if n.name == old.name else [n]))
    return replace(graph, nodes=tuple(nodes))
