"""Typing rules: what type an op's result has, and what shape a tile has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir.dtypes import DType, wider
from mirage_kernels.generator.ir.graph import Axis, Dim, Node, Space, TensorType
from mirage_kernels.generator.ir.ops import OPS, Kind, Op

SCALAR = TensorType((), DType.FP32)


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
    if op.kind in (Kind.REDUCE, Kind.STABILISER, Kind.CONTRACT):
        return _reduced(node, args, where)
    if op.kind is Kind.CARRY:
        return _carried(node, args, where)
    raise GraphError(f"{where}: {node.op} has no result type of its own")


def _reduced(node: Node, args: Sequence[TensorType], where: str) -> TensorType:
    for name, arg in zip(node.args, args, strict=True):
        if node.over not in arg.names:
            raise GraphError(f"{where}: {name} has no dim {node.over!r}, only {list(arg.names)}")
    dims = tuple(d for d in union_dims(args, where) if d.name != node.over)
    return TensorType(dims, _accumulated(args[0].dtype))


def _carried(node: Node, args: Sequence[TensorType], where: str) -> TensorType:
    extra = [d for a in args[1:] for d in a.dims if d not in args[0].dims]
    if extra:
        raise GraphError(f"{where}: {node.args[1]} has dim {extra[0]}, {node.args[0]} lacks it")
    return replace(args[0], dtype=_accumulated(args[0].dtype))


def _accumulated(dtype: DType) -> DType:
    return DType.FP32 if dtype.is_real else dtype


def _elementwise_dtype(op: str, args: Sequence[TensorType], where: str) -> DType:
    dtypes = [a.dtype for a in args]
    if op == "less":
        return DType.BOOL
    if op == "where":
        if dtypes[0] is not DType.BOOL:
            raise GraphError(f"{where}: the condition must be bool, not {dtypes[0].value}")
        return wider(dtypes[1], dtypes[2])
    return dtypes[0] if len(dtypes) == 1 else wider(dtypes[0], dtypes[1])


def count(axis: Axis, extent: int) -> int:
    """Return into how many tiles an axis cuts `extent` elements of its dim."""
    return -(-extent // axis.tile)


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
        dims[cut] = replace(dims[cut], size=size)
    return TensorType(tuple(dims.values()), full.dtype)


def extents_of(types: Sequence[TensorType]) -> dict[str, int]:
    """Return the extent (or bound) of every dim that occurs in `types`."""
    return {d.name: d.size for t in types for d in t.dims}
