"""A graph over other dims: those of a program that splits what the graph takes whole."""

from __future__ import annotations

from collections.abc import Mapping

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.frontend.positional.lower import Lowered, sizes_of
from mirage_kernels.generator.ir import Builder, Dim, Graph, Level, Node, TensorType, Value
from mirage_kernels.generator.ir.infer import SCALAR

Rows = Mapping[str, tuple[str, ...]]  # the dims that each dim becomes


def spelled(spec: Lowered, like: Lowered) -> Lowered:
    """Return a graph without blocks over the dims of a program with the same tensors.

    Raises GraphError where the program has no such dims: it splits one in several ways, or the
    graph splits what the program takes whole.
    """
    rows: dict[str, tuple[str, ...]] = {}
    mine, theirs = (*spec.inputs, *spec.outputs), (*like.inputs, *like.outputs)
    for own, other in zip(mine, theirs, strict=True):
        for dims, row in zip(own, other, strict=True):
            if len(dims) > 1 or any(rows.setdefault(d, row) != row for d in dims):
                raise GraphError(f"dim {' '.join(dims)} is split in several ways")
    graph = _respelled(spec.graph, rows, sizes_of(like.graph))
    return Lowered(graph, like.inputs, like.outputs)


def _respelled(graph: Graph, rows: Rows, sizes: Mapping[str, int]) -> Graph:
    builder = Builder(Level.KERNEL)
    found: dict[str, str] = {}  # values by the names that they had

    def emit(name: str, op: str, *args: str, over: str = "") -> str:
        made = Value(builder.free_name(name), SCALAR)
        return builder.add(Node(op, args, (made,), over=over))

    for node in graph.nodes:
        args = tuple(found[a] for a in node.args)
        first, *rest = reversed(rows.get(node.over) or (node.over,))  # the innermost first
        if node.op == "input":
            dims = tuple(Dim(d, sizes[d]) for old in node.out.type.names for d in rows[old])
            made = builder.input(node.name, TensorType(dims, node.out.type.dtype))
        elif node.op == "const":
            made = builder.add(node)
        elif node.op == "size":
            made = emit(node.name, "size", over=first)
            for dim in rest:
                made = emit(node.name, "mul", made, emit(f"size_{dim}", "size", over=dim))
        else:
            made = emit(node.name, node.op, *args, over=first)
            for dim in rest:  # products are summed along what is left
                made = emit(node.name, "sum" if node.op == "contract" else node.op, made, over=dim)
        found[node.name] = made
    return builder.graph([found[o] for o in graph.outputs])
