"""Making graphs: a builder that types nodes as it adds them, precision, and new tile sizes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.graph import (
    Graph,
    Level,
    Node,
    Space,
    TensorType,
    Value,
)
from mirage_kernels.generator.ir.infer import extents_of, numbered, result_type, tile_type
from mirage_kernels.generator.ir.ops import OPS, Kind


@dataclass
class Builder:
    """Adds nodes to a growing graph, inferring types and refusing duplicate names."""

    level: Level
    space: Space | None = None
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)

    def add(self, node: Node) -> str:
        """Append `node` with its inferred result type and return its name."""
        args = [self.types[a] for a in node.args]
        if OPS[node.op].kind not in (Kind.GRAPH, Kind.OUTPUT):
            node = replace(node, outs=(Value(node.name, result_type(node, args)),))
        return self.keep(node)

    def keep(self, node: Node) -> str:
        """Append `node` with the types that it declares and return its name."""
        self.nodes.append(node)
        self.types.update({v.name: v.type for v in node.outs})
        return node.name

    def input(
        self,
        name: str,
        type_: TensorType,
        *,
        optional: bool = False,
        grouped: Mapping[str, int] | None = None,
    ) -> str:
        """Append a kernel-level input."""
        node = Node("input", (), (Value(name, type_),), optional=optional)
        return self.add(replace(node, grouped=tuple((grouped or {}).items())))

    def free_name(self, wanted: str) -> str:
        """Return `wanted`, or with the smallest suffix that makes it new."""
        names = itertools.chain([wanted], (f"{wanted}_{suffix}" for suffix in itertools.count(2)))
        return next(name for name in names if name not in self.types)

    def graph(self, outputs: Sequence[str]) -> Graph:
        """Return the finished graph."""
        return Graph(self.level, tuple(self.nodes), tuple(outputs), self.space)


def retile(graph: Graph, tiles: Mapping[str, int]) -> Graph:
    """Return `graph` with the tile sizes `tiles` (by `Axis.tile_key`) in every block graph."""
    return _retyped(graph, [n.out.type for n in graph.inputs], tiles)


def _retyped(graph: Graph, given: Sequence[TensorType], tiles: Mapping[str, int]) -> Graph:
    """Return a graph as it is where its inputs are bound to operands of the types `given`."""
    space = None if graph.space is None else graph.space.with_tiles(tiles)
    extents, bound = extents_of(given), iter(given)
    types: dict[str, TensorType] = {}
    nodes = []
    for node in graph.nodes:
        made = [v.type for v in node.outs]
        if node.op == "input":
            full = next(bound)
            made = [full if space is None else tile_type(node, full, space, extents)]
        elif node.op == "output" and space is not None:
            cut = {d.name: d for t in given for d in t.dims}
            parts = (numbered(a, space, cut[a.dim]) for a in space.reduced)
            whole = {**extents, **{d.name: d.size for d in parts}}
            dims = tuple(d.with_size(whole.get(d.name, d.size)) for d in made[0].dims)
            made = [TensorType(dims, made[0].dtype)]
        elif node.body is not None:
            inner = _retyped(node.body, [types[a] for a in node.args], tiles)
            node = node if inner is node.body else replace(node, body=inner)
            made = [inner.values[o].type for o in inner.outputs]
        elif node.args and any(types[a] != graph.values[a].type for a in node.args):
            inferred = result_type(node, [types[a] for a in node.args])
            own = {name: i for i, name in enumerate(node.out.type.names)}  # its order of dims
            dims = tuple(sorted(inferred.dims, key=lambda d: own.get(d.name, len(own))))
            made = [TensorType(dims, node.out.type.dtype)]
        pairs = list(zip(node.outs, made, strict=True))
        types.update({v.name: t for v, t in pairs})
        if any(v.type != t for v, t in pairs):
            node = node.with_outs(tuple(Value(v.name, t) for v, t in pairs))
        nodes.append(node)
    same = space == graph.space and all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
    return graph if same else replace(graph, nodes=tuple(nodes), space=space)


_COMPUTED = (Kind.ELEMENTWISE, Kind.CONTRACT, Kind.REDUCE, Kind.STABILISER, Kind.CARRY)


def with_precision(block: Graph, storage: DType, *, squares: bool = True) -> Graph:
    """Return `block` with the element type of every intermediate chosen.

    Operands of a contraction are in `storage`, as the tensor cores take them; every other real
    intermediate is fp32: accumulators always, and elementwise values until they are stored. What is
    stored in every step of a loop is rounded for all its users. Without `squares`, products of a
    value with itself are not taken by tensor cores, and it is fp32 too.
    """
    nodes = []
    for node in block.nodes:
        if OPS[node.op].kind in _COMPUTED:
            users = block.users(node.name)
            products = [u for u in users if u.op == "contract"]
            narrow = any(squares or len({*u.args}) > 1 for u in products)
            stored = (u for u in users if u.op == "output" and u.loop_cut is not None)
            narrow |= any(u.out.type.dtype is storage for u in stored)
            if node.out.type.dtype.is_real:
                type_ = replace(node.out.type, dtype=storage if narrow else DType.FP32)
                node = replace(node, outs=(Value(node.name, type_),))
        nodes.append(node)
    return replace(block, nodes=tuple(nodes))
