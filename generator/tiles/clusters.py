"""A muGraph without clusters, for languages that have none: one block does what several combine.

The axis whose blocks make partial sums is gone. A block that loops takes the whole dim and combines
nothing, and so does one that holds its part to the end: it has the whole row. For any other the
axis becomes its loop, and what was combined is carried along.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from mirage_kernels.generator.ir import Axis, Graph, Node, Space, check, held_dims, retile

_CARRIED = {"combine": "accum", "combine_max": "accum_max", "combine_rescaled": "accum_rescaled"}


def without_clusters(graph: Graph) -> Graph:
    """Return a muGraph whose blocks combine nothing."""
    joined = [n for n in graph.blocks if n.body is not None and n.body.of(*_CARRIED)]
    alone = replace(graph, nodes=tuple(_alone(n) if n in joined else n for n in graph.nodes))
    return check(retile(alone, {}))


def _alone(kernel: Node) -> Node:
    """Return a kernel whose blocks share no sums."""
    body = kernel.body
    assert body is not None
    assert body.space is not None
    grid, given = body.space.grid, body.space.loop
    left = [i for i, axis in enumerate(grid) if not axis.reduced]
    loop, becomes_loop = given, given is None and not held_dims(body)
    if becomes_loop:
        (split,) = body.space.reduced
        loop = Axis("loop", split.dim, split.tile)
    nodes = tuple(_nodes(body, left, becomes_loop=becomes_loop))
    space = Space(tuple(grid[i] for i in left), loop)
    return replace(kernel, body=replace(body, nodes=nodes, space=space))


def _nodes(body: Graph, left: Collection[int], *, becomes_loop: bool) -> Iterator[Node]:
    """Yield a block's nodes, cut by the axes that are left."""
    same = dict[str, str]()  # what stands for a value that was combined
    for node in body.nodes:
        node = replace(node, args=tuple(same.get(a, a) for a in node.args))
        if node.op in _CARRIED and not becomes_loop:
            same[node.out.name] = node.args[0]
        elif node.op in _CARRIED:
            peak = body.producers[node.args[0]].op == "peak"
            yield replace(node, op="last" if peak else _CARRIED[node.op], over="")
        elif node.cuts:
            gone = [cut for i, cut in enumerate(node.cuts) if i not in left and cut is not None]
            step = gone[0] if gone and becomes_loop else node.loop_cut
            yield replace(node, cuts=tuple(node.cuts[i] for i in left), loop_cut=step)
        else:
            yield node
