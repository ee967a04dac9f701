"""Checks of a whole graph: what is wrong is named by value, op and dim."""

from __future__ import annotations

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir.graph import (
    Graph,
    Level,
    Node,
    Phase,
    TensorType,
    partial_along,
    parts_of,
    phases_of,
)
from mirage_kernels.generator.ir.infer import extents_of, op_of, result_type, tile_type
from mirage_kernels.generator.ir.ops import OPS, Kind, ops_of_kind

_LEVEL_OF_BODY = {"block": Level.BLOCK, "thread": Level.THREAD}
_NODE_LEVELS = {
    **dict.fromkeys(ops_of_kind(Kind.CARRY), Level.BLOCK),
    "output": Level.BLOCK,
    "block": Level.KERNEL,
    "thread": Level.BLOCK,
}


def check(graph: Graph, outer: tuple[TensorType, ...] | None = None) -> Graph:
    """Return `graph` if it is well formed; raise GraphError with the reason otherwise.

    `outer` holds the types of the tensors that a nested graph's inputs are bound to.
    """
    seen: dict[str, TensorType] = {}
    bound = iter(outer or ())
    if outer is not None and len(outer) != len(graph.inputs):
        raise GraphError(
            f"a {graph.level.value} graph with {len(graph.inputs)} inputs is given {len(outer)}"
        )
    for node in graph.nodes:
        _check_names(node, seen, graph)
        if node.op == "input" and outer is not None:
            _check_input(node, graph, next(bound), extents_of(outer))
        _check_node(node, graph, seen)
        seen.update({v.name: v.type for v in node.outs})
    for name in graph.outputs:
        if name not in seen:
            raise GraphError(f"output {name!r} is not computed by the graph")
    if graph.level is Level.BLOCK:
        _check_phases(graph)
        _check_carried(graph)
        _check_partial(graph)
    return graph


def _check_names(node: Node, seen: dict[str, TensorType], graph: Graph) -> None:
    for arg in node.args:
        if arg not in seen:
            raise GraphError(f"{node.name} = {node.op}(...): operand {arg!r} is not defined before")
    for value in node.outs:
        if value.name in seen:
            raise GraphError(f"value {value.name!r} is defined twice")
    op_of(node)
    if graph.level is not _NODE_LEVELS.get(node.op, graph.level):
        raise GraphError(f"{node.name}: {node.op} does not belong in a {graph.level.value} graph")


def _check_node(node: Node, graph: Graph, seen: dict[str, TensorType]) -> None:
    args = tuple(seen[a] for a in node.args)
    kind = OPS[node.op].kind
    if kind is Kind.GRAPH:
        _check_body(node, args)
    elif kind is Kind.OUTPUT:
        _check_output(node, graph, args[0])
    elif kind is not Kind.SOURCE:
        want = result_type(node, args)
        have = node.out.type
        same_dims = set(want.dims) == set(have.dims)  # a result may be stored in any order
        if not same_dims or want.dtype.is_real != have.dtype.is_real:
            raise GraphError(f"{node.name} = {node.op}(...): is declared {have}, computes {want}")


def _check_input(node: Node, graph: Graph, full: TensorType, extents: dict[str, int]) -> None:
    """Check what a nested graph's input is bound to: a tile of `full` in a block graph."""
    want = full
    if graph.level is Level.BLOCK:
        if graph.space is None or len(node.cuts) != len(graph.space.grid):
            raise GraphError(f"{node.name}: its imap must have one entry per grid axis")
        if node.loop_cut and graph.space.loop is None:
            raise GraphError(f"{node.name}: has an fmap, but the block graph has no loop")
        want = tile_type(node, full, graph.space, extents)
    if want != node.out.type:
        raise GraphError(f"{node.name}: is declared {node.out.type}, but is bound to {want}")


def _check_body(node: Node, args: tuple[TensorType, ...]) -> None:
    if node.body is None or node.body.level is not _LEVEL_OF_BODY[node.op]:
        raise GraphError(f"{node.name}: a {node.op} node needs a {node.op}-level graph")
    body = check(node.body, args)
    results = [body.values[o].type for o in body.outputs]
    if results != [v.type for v in node.outs]:
        raise GraphError(
            f"{node.name}: its graph computes {list(map(str, results))}, "
            f"declared are {[str(v.type) for v in node.outs]}"
        )


def _check_output(node: Node, graph: Graph, tile: TensorType) -> None:
    if graph.space is None or len(node.cuts) != len(graph.space.grid):
        raise GraphError(f"{node.name}: its omap must have one entry per grid axis")
    cuts = list(zip(graph.space.grid, node.cuts, strict=True))
    parts = {cut for axis, cut in cuts if axis.reduced and cut == parts_of(axis.dim)}
    if set(tile.names) | parts != set(node.out.type.names):
        raise GraphError(f"{node.name}: stores a tile {tile} into {node.out.type}, the dims differ")
    for axis, cut in cuts:
        if cut is not None and cut not in tile.names and cut not in parts:
            raise GraphError(f"{node.name}: its omap cuts {cut!r} by {axis.name}, a dim it lacks")
    if node.loop_cut is not None and node.loop_cut not in tile.names:
        raise GraphError(f"{node.name}: its fmap cuts {node.loop_cut!r}, a dim it lacks")


def _check_phases(graph: Graph) -> None:
    phases = phases_of(graph)
    for node in graph.nodes:
        if phases[node.name] is None:
            raise GraphError(
                f"{node.name} = {node.op}({', '.join(node.args)}): mixes values of one loop "
                "iteration with values after the loop",
                "carry values out of the loop with accum",
            )
    for name in graph.outputs:
        stepwise = graph.producers[name].op == "output" and graph.producers[name].loop_cut
        if phases[name] is Phase.LOOP and not stepwise:
            raise GraphError(f"output {name} is a value of one loop iteration", "use accum")
        if stepwise and phases[name] is not Phase.LOOP:
            raise GraphError(f"output {name} has an fmap, but is no value of the loop")


def _check_carried(graph: Graph) -> None:
    """Check that rescaling follows a running peak and that blocks combine along a reduced axis."""
    assert graph.space is not None
    reduced = {a.dim for a in graph.space.reduced}
    for node in graph.nodes:
        peak = {"accum_rescaled": node.args[-1:], "last": node.args}.get(node.op, ())
        for name in peak:
            if graph.producers[name].op != "peak":
                raise GraphError(f"{node.name} = {node.op}(...): {name} is not a running peak")
        if node.op in ("combine", "combine_rescaled") and node.over not in reduced:
            raise GraphError(f"{node.name}: no reduced grid axis cuts {node.over!r}")


def _check_partial(graph: Graph) -> None:
    """Check that what varies along a reduced axis is combined, or stored side by side."""
    partial, phases = partial_along(graph), phases_of(graph)
    for node in graph.nodes:
        if node.op == "output":
            # The dims along which the omap keeps blocks apart.
            kept = {cut.removesuffix(parts_of("")) for cut in node.cuts if cut is not None}
            lost = partial[node.args[0]] - kept
            if lost:
                raise GraphError(
                    f"{node.name}: blocks along {min(lost)} hold partial results and store them "
                    "in the same place",
                    f"combine them, or store them along {parts_of(min(lost))}",
                )
        elif phases[node.name] is Phase.JOINED and not node.op.startswith("combine"):
            joined = [partial[a] for a in node.args if phases[a] is Phase.JOINED]
            if not partial[node.name] <= frozenset().union(*joined):
                raise GraphError(f"{node.name}: mixes one block's values with combined ones")
