"""Elements that are chosen of a softmax: chosen of what it is made of, so that nothing stores it.

    gather(log_softmax(x), t)  ->  gather(x, t) - logsumexp(x)
    gather(softmax(x), t)      ->  exp(gather(x, t) - logsumexp(x))
    gather(f(x, y), t)         ->  f(gather(x, t), y), of elementwise functions in front of one

Probabilities of tokens are such. It is done before a function is cut, alike in its graphs at
several extents.
"""

from __future__ import annotations

from typing import Any

from mirage_kernels.generator.frontend.editing import (
    CASTS,
    Node,
    added,
    arguments_of,
    cast,
    is_op,
    substitute,
    taken_by,
    with_taken,
)
from mirage_kernels.generator.partition.rewriting import regions

_SOFTMAXES = ("softmax", "log_softmax")


def chosen_first(graph: Any) -> None:
    """Choose elements before softmaxes of which a function takes nothing else."""
    import torch

    region = regions(graph)
    for softmax in [n for n in graph.nodes if is_op(n, *_SOFTMAXES)]:
        made = softmax.meta["val"]
        if not made.dim() or made.dtype is torch.float64 or not softmax.users:
            continue
        dim = arguments_of(softmax)["dim"] % made.dim()
        if all(_chooses(n, dim) and region[n] == region[softmax] for n in softmax.users):
            for node in [*softmax.users]:
                _choose(graph, node, softmax, dim)


def _chooses(node: Node, dim: int) -> bool:
    """Say whether a node is a gather along a dim, of all that a tensor has along the others."""
    if not is_op(node, "gather"):
        return False
    given = arguments_of(node)
    rank, own = _rank(given["self"]), [*_shape(given["index"])]
    others = [*_shape(given["self"])]
    others[dim] = own[dim]
    return given["dim"] % rank == dim and own == others


def _choose(graph: Any, node: Node, softmax: Node, dim: int) -> None:
    """Write a gather of a softmax as one of what the softmax takes."""
    import torch

    aten, x = torch.ops.aten, arguments_of(softmax)["self"]
    wide = cast(graph, node, x, torch.float32)
    total = added(graph, node, aten.logsumexp.default, (wide, [dim], True))
    own = cast(graph, node, _chosen(graph, node, x, dim), torch.float32)
    made = added(graph, node, aten.sub.Tensor, (own, total))
    if is_op(softmax, "softmax"):
        made = added(graph, node, aten.exp.default, (made,))
    substitute(graph, node, cast(graph, node, made, node.meta["val"].dtype))


def _chosen(graph: Any, node: Node, x: Node, dim: int) -> Node:
    """Return what a gather chooses of another tensor of the same extents."""
    import torch

    taken = x.all_input_nodes
    long = [n for n in taken if [*_shape(n)] == [*_shape(x)]]
    # What has one element along the dim stays; a vector along it would have to be widened.
    short = [n for n in taken if not _rank(n) or (_rank(n) == _rank(x) and _shape(n)[dim] == 1)]
    is_pointwise = is_op(x, *CASTS) or torch.Tag.pointwise in getattr(x.target, "tags", ())
    alike = len(long) == 1 and len({*long, *short}) == len(taken)
    if x.op != "call_function" or not is_pointwise or not alike:
        return added(graph, node, node.target, (x, dim, arguments_of(node)["index"]))
    own = _chosen(graph, node, long[0], dim)
    args, named = with_taken(x, {i: own for i, n in enumerate(taken_by(x)) if n is long[0]})
    return added(graph, node, x.target, args, **named)


def _shape(x: Node) -> Any:
    return x.meta["val"].shape


def _rank(x: Node) -> int:
    return len(_shape(x))
