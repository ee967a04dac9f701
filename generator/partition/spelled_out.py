"""Activations that a function spells out, found by their values.

    0.5 * x * (1 + tanh(0.79788 * (x + 0.044715 * x ** 3)))  ->  gelu(x, approximate="tanh")
    x * 0.5 * (1 + erf(x / 1.41421))                         ->  gelu(x)

Models write them in many ways. Operators that come from one tensor and numbers alone are computed
at some points, and are an activation where they are equal to it there. It is done before a function
is cut, alike in its graphs at several extents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.frontend.editing import (
    Node,
    added,
    is_op,
    mutates,
    substitute,
    upstream,
)
from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.partition.rewriting import regions

if TYPE_CHECKING:
    import torch

ELEMENTWISE = ("add", "sub", "mul", "div", "pow", "square", "neg", "tanh", "erf")
APPROXIMATE = {"tanh": "tanh", "erf": "none"}  # the function in a gelu, and how that is named
MOST = 12  # operators of an activation
ENDS, POINTS, NEAR = 12.0, 193, 1e-6  # where they are compared, and how nearly equal they are


def with_activations(graph: Any) -> None:
    """Put activations in the places of what spells them out."""
    for inner in [n for n in graph.nodes if is_op(n, *APPROXIMATE)]:
        region = regions(graph)
        for last in _behind(inner):
            x = _taken(region, inner, last)
            if x is not None:
                substitute(graph, last, _gelu(graph, last, x, APPROXIMATE[operator_of(inner)]))
                break


def _gelu(graph: Any, before: Node, x: Node, approximate: str) -> Node:
    import torch

    return added(graph, before, torch.ops.aten.gelu.default, (x,), approximate=approximate)


def _behind(node: Node) -> Iterator[Node]:
    """Yield the products that may end an activation, the nearest first."""
    while len(node.users) == 1:
        (node,) = node.users
        if not is_op(node, *ELEMENTWISE):
            return
        if is_op(node, "mul"):
            yield node


def _taken(region: dict[Node, int], inner: Node, last: Node) -> Node | None:
    """Return the tensor that a product is an activation of, with `inner` in it; None of none.

    `region` has the graph's nodes in order, and how many operators in front write over operands.
    """
    known = {n for n in region if _is_elementwise(n) and region[n] == region[last]}
    front = {taken for n in upstream(inner, known) for taken in n.all_input_nodes}
    for x in (n for n in reversed(region) if n in front):
        between = upstream(last, known - {x})
        closed = {a for n in between for a in n.all_input_nodes} <= between | {x}
        whole = closed and inner in between and len(between) <= MOST and _alike(x, last)
        if whole and _is_gelu(x, [n for n in region if n in between], inner):
            return x
    return None


def _is_elementwise(node: Node) -> bool:
    """Say whether a node may be a part of an activation: an operator, or a number."""
    number = is_op(node, "full") and not node.meta["val"].dim()
    return (number or is_op(node, *ELEMENTWISE)) and not mutates(node)


def _alike(x: Node, last: Node) -> bool:
    """Say whether two values have one type and shape, and lie in device memory as numbers."""
    import torch

    values = [n.meta.get("val") for n in (x, last)]
    if not all(isinstance(v, torch.Tensor) for v in values):
        return False
    return values[0].shape == values[1].shape and values[0].dtype is values[1].dtype


def _is_gelu(x: Node, nodes: list[Node], inner: Node) -> bool:
    """Say whether operators compute what gelu does, to six digits."""
    import torch

    points = torch.linspace(-ENDS, ENDS, POINTS, dtype=torch.float64)
    values: dict[Node, torch.Tensor] = {x: points}
    for node in nodes:
        args, named = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = node.target(*args, **named)
    wanted = torch.nn.functional.gelu(points, approximate=APPROXIMATE[operator_of(inner)])
    return bool(torch.allclose(values[nodes[-1]], wanted, rtol=NEAR, atol=NEAR))
