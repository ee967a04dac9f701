"""Typing rules: what type an op's result has, what shape a tile has; checks of whole graphs.

What is wrong with a graph is named by value, op and dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir.dtypes import DType, wider
from mirage_kernels.generator.ir.graph import (
    Axis,
    Dim,
    Graph,
    Level,
    Node,
    Phase,
    Space,
    TensorType,
    partial_along,
    parts_of,
    phases_of,
)
from mirage_kernels.generator.ir.ops import COMBINES, OPS, Kind, Op, ops_of_kind

SCALAR = TensorType((), DType.FP32)
MOST_PARTS = 32  # of a dim of any extent, whose sums another kernel joins
_LEVEL_OF_BODY = {"block": Level.BLOCK, "thread": Level.THREAD}
_NODE_LEVELS = {
    **dict.fromkeys(ops_of_kind(Kind.CARRY), Level.BLOCK),
    "output": Level.BLOCK,
    "block": Level.KERNEL,
    "thread": Level.BLOCK,
}


def union_dims(types: Sequence[TensorType], where: str) -> tuple[Dim, ...]:
    """Return the dims of a broadcast: those of the first operand, then what the others add."""
    dims: dict[str, Dim] = {}
    for d in (d for t in types for d in t.dims):
        if dims.setdefault(d.name, d) != d:
            raise GraphError(
                f"{where}: operands disagree on dim {d.name}: {dims[d.name]} against {d}",
                "cut the dim in all operands alike, or in none",
            )
    return tuple(dims.values())


def op_of(node: Node) -> Op:
    """Return a node's row of the op table; raises GraphError where there is none."""
    if node.op not in OPS:
        raise GraphError(
            f"{node.name}: there is no op called {node.op!r}", f"ops: {', '.join(OPS)}"
        )
    return OPS[node.op]


def result_type(node: Node, args: Sequence[TensorType]) -> TensorType:
    """Return the type of `node`'s result; sources must carry their own type.

    Raises GraphError for a wrong number of operands, dims that disagree, a missing reduced dim.
    """
    op = op_of(node)
    where = f"{node.name} = {node.op}({', '.join(node.args)})"
    if op.arity >= 0 and op.arity != len(args):
        raise GraphError(f"{where}: {node.op} takes {op.arity} operands, not {len(args)}")
    if op.kind is Kind.SOURCE:
        return node.out.type
    if op.kind is Kind.ELEMENTWISE:
        return TensorType(union_dims(args, where), _elementwise_dtype(node.op, args, where))
    if op.kind in (Kind.GRAPH, Kind.OUTPUT):
        raise GraphError(f"{where}: {node.op} has no result type of its own")
    first, *others = args
    accumulated = DType.FP32 if first.dtype.is_real else first.dtype
    if op.kind is Kind.CARRY:
        extra = [d for other in others for d in other.dims if d not in first.dims]
        if extra:
            raise GraphError(f"{where}: {node.args[1]} has dim {extra[0]}, {node.args[0]} lacks it")
        return replace(first, dtype=accumulated)
    for name, arg in zip(node.args, args, strict=True):
        if node.over not in arg.names:
            raise GraphError(f"{where}: {name} has no dim {node.over!r}, only {list(arg.names)}")
    dims = tuple(d for d in union_dims(args, where) if d.name != node.over)
    return TensorType(dims, accumulated)


def _elementwise_dtype(op: str, args: Sequence[TensorType], where: str) -> DType:
    dtypes = [a.dtype for a in args]
    if op == "where" and dtypes[0] is not DType.BOOL:
        raise GraphError(f"{where}: the condition must be bool, not {dtypes[0].value}")
    choices = dtypes[1:] if op == "where" else dtypes
    return DType.BOOL if op == "less" else reduce(wider, choices)


def count(axis: Axis, extent: int) -> int:
    """Return into how many tiles an axis cuts `extent` elements of its dim."""
    return -(-extent // axis.tile)


def numbered(axis: Axis, space: Space, whole: Dim) -> Dim:
    """Return the dim that numbers the parts into which a reduced axis cuts a dim.

    Blocks that loop over their parts of a dim of any extent are `MOST_PARTS` at most: the parts
    grow with it then, in whole steps.
    """
    parts = count(axis, whole.size)
    if whole.dynamic and space.loops_over(axis):
        parts = min(parts, MOST_PARTS)
    return Dim(parts_of(axis.dim), parts, whole.dynamic)


def tile_type(node: Node, full: TensorType, space: Space, extents: dict[str, int]) -> TensorType:
    """Return the type of the tile that a block input sees of the tensor type `full`.

    An axis may cut another dim than its own (a wrong imap does): into equally many tiles.
    """
    dims = {d.name: d for d in full.dims}
    for axis, cut in zip(space.axes, (*node.cuts, node.loop_cut), strict=False):
        if cut is None:
            continue
        if cut not in dims:
            raise GraphError(
                f"{node.name}: axis {axis.name} cuts dim {cut!r}, which {full} does not have"
            )
        own = cut == axis.dim or axis.dim not in extents
        size = axis.tile if own else -(-dims[cut].size // count(axis, extents[axis.dim]))
        dims[cut] = dims[cut].with_size(size)
    return TensorType(tuple(dims.values()), full.dtype)


def extents_of(types: Sequence[TensorType]) -> dict[str, int]:
    """Return the extent (or bound) of every dim that occurs in `types`."""
    return {d.name: d.size for t in types for d in t.dims}


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
        _check_node(node, graph, seen)
        if node.op == "input" and outer is not None:
            _check_input(node, graph, next(bound), extents_of(outer))
        for value in node.outs:
            if value.name in seen:
                raise GraphError(f"value {value.name!r} is defined twice")
            seen[value.name] = value.type
    for name in graph.outputs:
        if name not in seen:
            raise GraphError(f"output {name!r} is not computed by the graph")
    if graph.level is Level.BLOCK:
        _check_phases(graph)
        _check_partial(graph)
    return graph


def _check_node(node: Node, graph: Graph, seen: dict[str, TensorType]) -> None:
    for arg in node.args:
        if arg not in seen:
            raise GraphError(f"{node.name} = {node.op}(...): operand {arg!r} is not defined before")
    args, kind = tuple(seen[a] for a in node.args), op_of(node).kind
    if graph.level is not _NODE_LEVELS.get(node.op, graph.level):
        raise GraphError(f"{node.name}: {node.op} does not belong in a {graph.level.value} graph")
    if kind is Kind.GRAPH:
        if node.body is None or node.body.level is not _LEVEL_OF_BODY[node.op]:
            raise GraphError(f"{node.name}: a {node.op} node needs a {node.op}-level graph")
        body = check(node.body, args)
        results = [body.values[o].type for o in body.outputs]
        if results != [v.type for v in node.outs]:
            raise GraphError(
                f"{node.name}: its graph computes {list(map(str, results))}, "
                f"declared are {[str(v.type) for v in node.outs]}"
            )
    elif kind is Kind.OUTPUT:
        _check_output(node, graph, args[0])
    elif kind is not Kind.SOURCE:
        want, have = result_type(node, args), node.out.type
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
    """Check that no node mixes values of different phases, and what leaves the loop."""
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


def _check_partial(graph: Graph) -> None:
    """Check that rescaling follows a running peak, that blocks combine along a reduced axis, and
    that what varies along it is combined or stored side by side.
    """
    assert graph.space is not None
    partial, phases = partial_along(graph), phases_of(graph)
    for node in graph.nodes:
        for name in {"accum_rescaled": node.args[-1:], "last": node.args}.get(node.op, ()):
            if graph.producers[name].op != "peak":
                raise GraphError(f"{node.name} = {node.op}(...): {name} is not a running peak")
        if node.op in COMBINES:
            if node.over not in {a.dim for a in graph.space.reduced}:
                raise GraphError(f"{node.name}: no reduced grid axis cuts {node.over!r}")
        elif node.op == "output":
            # The dims along which the omap keeps blocks apart.
            kept = {cut.removesuffix(parts_of("")) for cut in node.cuts if cut is not None}
            lost = partial[node.args[0]] - kept
            if lost:
                raise GraphError(
                    f"{node.name}: blocks along {min(lost)} hold partial results and store them "
                    "in the same place",
                    f"combine them, or store them along {parts_of(min(lost))}",
                )
        elif phases[node.name] is Phase.JOINED:
            joined = [partial[a] for a in node.args if phases[a] is Phase.JOINED]
            held = {d for a in node.args for d in graph.values[a].type.names}  # of a block's part
            if not partial[node.name] <= held.union(*joined):
                raise GraphError(f"{node.name}: mixes one block's sums with combined ones")
