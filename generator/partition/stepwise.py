"""Sums over rows of what a row's own sums went into: along the row first, then over the rows.

    kl_div(log(softmax(x)), softmax(y))  ->  sum(sum(kl_div(..., reduction=none), -1))
    mean(layer_norm(x))                  ->  mean(mean(layer_norm(x), -1))

One kernel sums a row and what it is made of, and reads it once; another one adds up its fp32
results. Of fractions with a denominator for every row there would be no proof in one step.
"""

from __future__ import annotations

from typing import Any

from mirage_kernels.generator.frontend.editing import (
    Node,
    added,
    arguments_of,
    is_op,
    substitute,
)
from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.partition.reductions import LOSSES, first_of, reduces
from mirage_kernels.generator.partition.rewriting import PRODUCTS, SEEN

_NAMES = ("", "mean", "sum")  # of a loss's reduction, by number


def along_rows_first(graph: Any) -> None:
    """Rewrite the sums of a graph, and losses that sum up."""
    for node in [n for n in graph.nodes if is_op(n, "sum", "mean", *LOSSES) and reduces(n)]:
        summands, op, dims = node.args[0], operator_of(node), _dims_of(node)
        inner = _own_sums(summands, dims) if dims else set()
        if not inner or inner == dims:
            continue
        if is_op(node, *LOSSES):
            summands, op = _of_elements(graph, node)
        substitute(graph, node, _in_two(graph, node, (summands, op), (inner, dims)))


def _in_two(graph: Any, node: Node, of: tuple[Node, str], dims: tuple[set[int], set[int]]) -> Node:
    """Return a sum or mean along the first dims, then along the others."""
    import torch

    (x, op), (inner, every), made = of, dims, node.meta["val"]
    target = {"sum": torch.ops.aten.sum.dim_IntList, "mean": torch.ops.aten.mean.dim}[op]
    kept = len(made.shape) == len(first_of(x).shape)
    left = sorted(every - inner)
    rest = left if kept else [d + sum(i > d for i in inner) for d in left]
    rows = added(graph, node, target, (x, sorted(inner), kept), dtype=torch.float32)
    return added(graph, node, target, (rows, rest, kept), dtype=made.dtype)


def _of_elements(graph: Any, loss: Node) -> tuple[Node, str]:
    """Return a loss of each element, and what sums these up."""
    given = arguments_of(loss)
    named = {a.name for a in loss.target._schema.arguments if a.kwarg_only}
    args = tuple(0 if name == "reduction" else x for name, x in given.items() if name not in named)
    kwargs = {name: x for name, x in given.items() if name in named}
    return added(graph, loss, loss.target, args, **kwargs), _NAMES[given["reduction"]]


def _own_sums(x: Node, dims: set[int]) -> set[int]:
    """Return those of some dims along which sums went into a value."""
    shape, found, seen, left = first_of(x).shape, set[int](), set[Node](), [x]
    while left:
        node = left.pop()
        if node in seen or node.op != "call_function" or is_op(node, *PRODUCTS, *SEEN):
            continue
        seen.add(node)
        if reduces(node):
            found |= _dims_of(node)
        elif len(first_of(node).shape) == len(shape):
            left += node.all_input_nodes
    return found & dims


def _dims_of(node: Node) -> set[int]:
    """Return the dims along which a node sums, counted from the end; none where it does not say."""
    given, rank = arguments_of(node), len(first_of(node.args[0]).shape)
    if "normalized_shape" in given:
        return {*range(-len(given["normalized_shape"]), 0)}
    dim = given.get("dim")
    if dim is None or dim == []:
        whole = is_op(node, "sum", "mean", *LOSSES)
        return {*range(-rank, 0)} if whole else set()
    return {d if d < 0 else d - rank for d in (dim if isinstance(dim, list | tuple) else [dim])}
