"""Casts behind views: a kernel casts what it takes, PyTorch would cast and store it."""

from __future__ import annotations

from typing import Any

from mirage_kernels.generator.frontend.editing import CASTS, Node, added, is_op, substitute
from mirage_kernels.generator.partition.rewriting import SEEN, regions

_EXPANDS = ("expand", "expand_as", "broadcast_to")


def casts_last(graph: Any) -> None:
    """Look at inputs, and at what becomes wider, before they are cast."""
    region = regions(graph)
    for node in [*graph.nodes]:
        cast = node.args[0] if is_op(node, *SEEN) else None
        if cast is None or not is_op(cast, *CASTS) or region[cast] != region[node]:
            continue
        if not _is_given(cast.args[0]) and not _widens(cast):
            continue
        seen = added(graph, node, node.target, (cast.args[0], *node.args[1:]), **node.kwargs)
        made = added(graph, node, cast.target, (seen, *cast.args[1:]), **cast.kwargs)
        region |= dict.fromkeys((seen, made), region[node])
        substitute(graph, node, made)


def expands_last(graph: Any) -> None:
    """Cast what a value is expanded from: fewer elements, where PyTorch casts them."""
    region = regions(graph)
    for cast in [n for n in graph.nodes if is_op(n, *CASTS) and is_op(n.args[0], *_EXPANDS)]:
        expand = cast.args[0]
        if {*expand.users} == {cast} and region[expand] == region[cast]:
            made = added(graph, cast, cast.target, (expand.args[0], *cast.args[1:]), **cast.kwargs)
            wide = added(graph, cast, expand.target, (made, *expand.args[1:]), **expand.kwargs)
            substitute(graph, cast, wide)


def _is_given(node: Node) -> bool:
    """Say whether a node is an input, or a view of one."""
    while is_op(node, *SEEN):
        node = node.args[0]
    return bool(node.op == "placeholder")


def _widens(cast: Node) -> bool:
    """Say whether elements take more bytes than they did."""
    made, given = cast.meta["val"], cast.args[0].meta["val"]
    return bool(made.dtype.itemsize > given.dtype.itemsize)
