"""A muGraph without clusters, for languages that have none: one block does what several combine.

The axis whose blocks make partial sums is gone. Where a block loops, it loops over the whole dim and
needs no combining; else the axis becomes its loop, and what was combined is carried along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirage_kernels.generator.ir import Axis, Graph, Node, Space, check

_CARRIED = {"combine": "accum", "combine_rescaled": "accum_rescaled"}


def without_clusters(graph: Graph) -> Graph:
    """Return a muGraph whose blocks combine nothing."""
    made = (
        _alone(n) if n.body is not None and any(n.body.of(op) for op in _CARRIED) else n
        for n in graph.nodes
    )
    return check(replace(graph, nodes=tuple(made)))


def _alone(kernel: Node) -> Node:
    """Return a kernel whose blocks share no sums."""
    body = kernel.body
    assert body is not None
    assert body.space is not None
    left, reduced = [], []
    for i, axis in enumerate(body.space.grid):
        (reduced if axis.reduced else left).append(i)
    loop = body.space.loop
    if loop is None:
        (only,) = (body.space.grid[i] for i in reduced)
        loop = Axis("loop", only.dim, only.tile)
    space = Space(tuple(body.space.grid[i] for i in left), loop)
    nodes = _nodes(body, left, None if body.space.loop else loop)
    return replace(kernel, body=replace(body, nodes=tuple(nodes), space=space))


def _nodes(body: Graph, left: list[int], loop: Axis | None) -> Iterator[Node]:
    """Yield a block's nodes with the axes that are left; `loop`: the one that it gets."""
    same = dict[str, str]()  # what stands for a value that was combined
    for node in body.nodes:
        node = replace(node, args=tuple(same.get(a, a) for a in node.args))
        if node.op in _CARRIED and loop is None:
            same[node.out.name] = node.args[0]
        elif node.op in _CARRIED:
            yield replace(node, op=_CARRIED[node.op], over="")
        elif node.cuts:
            gone = [cut for i, cut in enumerate(node.cuts) if i not in left and cut is not None]
            step = gone[0] if gone and loop is not None else node.loop_cut
            yield replace(node, cuts=tuple(node.cuts[i] for i in left), loop_cut=step)
        else:
            yield node
