"""Giving the dims of a graph other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage_kernels.generator.ir import Axis, Graph, Node, Space, TensorType, Value

Names = Mapping[str, str]  # old name of a dim -> new one; the others keep theirs


def renamed(graph: Graph, names: Names) -> Graph:
    """Return `graph` with its dims renamed, at every level."""
    space = graph.space
    if space is not None:
        loop = _axis(space.loop, names) if space.loop else None
        space = Space(tuple(_axis(a, names) for a in space.grid), loop)
    return replace(graph, nodes=tuple(_node(n, names) for n in graph.nodes), space=space)


def renamed_type(type_: TensorType, names: Names) -> TensorType:
    """Return a type with its dims renamed."""
    dims = tuple(replace(d, name=names.get(d.name, d.name)) for d in type_.dims)
    return TensorType(dims, type_.dtype)


def _axis(axis: Axis, names: Names) -> Axis:
    return replace(axis, dim=names.get(axis.dim, axis.dim))


def _node(node: Node, names: Names) -> Node:
    return replace(
        node,
        outs=tuple(Value(v.name, renamed_type(v.type, names)) for v in node.outs),
        over=names.get(node.over, node.over),
        cuts=tuple(names.get(c, c) if c is not None else None for c in node.cuts),
        loop_cut=names.get(node.loop_cut, node.loop_cut) if node.loop_cut else None,
        body=renamed(node.body, names) if node.body is not None else None,
    )
