"""Matrix products of a kernel graph as block graphs, so that they are kernels like all others."""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.ir import (
    Axis,
    Builder,
    Graph,
    Level,
    Node,
    Space,
    Value,
    check,
    tile_type,
    with_precision,
)
from mirage_kernels.generator.ir.infer import SCALAR, extents_of

TILE = 16  # until knobs are chosen
NAMES = "xyzuvw"  # of grid axes


def with_products(graph: Graph) -> Graph:
    """Return a muGraph whose products by a library are block graphs: a loop that sums tiles."""
    if not graph.of("contract"):
        return graph
    made = (_as_block(graph, n) if n.op == "contract" else n for n in graph.nodes)
    return check(replace(graph, nodes=tuple(made)))


def _as_block(graph: Graph, node: Node) -> Node:
    """out[rows, columns] = sum of a * b over steps of a loop, cut along every dim of the result."""
    types = [graph.values[name].type for name in node.args]
    grid = [Axis(NAMES[i], d.name, TILE) for i, d in enumerate(node.out.type.dims)]
    space = Space(tuple(grid), Axis("loop", node.over, TILE))
    builder, tiles = Builder(Level.BLOCK, space), []
    for name, whole in zip(node.args, types, strict=True):
        cuts = tuple(a.dim if a.dim in whole.names else None for a in grid)
        tile = Node("input", (), (Value(name, whole),), cuts=cuts, loop_cut=node.over)
        type_ = tile_type(tile, whole, space, extents_of(types))
        own = builder.free_name(f"{name}_tile")
        tiles.append(builder.add(replace(tile, outs=(Value(own, type_),))))
    product = Node("contract", tuple(tiles), (Value("product", SCALAR),), over=node.over)
    total = Node("accum", (builder.add(product),), (Value("total", SCALAR),))
    out = Value(builder.free_name("stored"), node.out.type)
    axes = tuple(a.dim for a in grid)
    stored = builder.add(Node("output", (builder.add(total),), (out,), cuts=axes))
    body = with_precision(builder.graph([stored]), node.out.type.dtype)
    return Node("block", node.args, node.outs, body=body)
