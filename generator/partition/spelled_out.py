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

from mirage_kernels.generator.frontend.editing import Node, added, is_op, mutates, substitute
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
        for last in _behind(inner):
            x = _taken(graph, inner, last)
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


def _taken(graph: Any, inner: Node, last: Node) -> Node | None:
    """Return the tensor that a product is an activation of, with `inner` in it; None of none."""
    region = regions(graph)
    for x in _upstream(inner):
        between = _between(x, last)
        same = between and all(region[n] == region[last] for n in between)
        if same and inner in between and _alike(x, last) and _is_gelu(x, between, inner):
            return x
    return None


def _upstream(node: Node) -> Iterator[Node]:
    """Yield what elementwise operators come from, the nearest first."""
    left, seen = [node], set[Node]()
    while left and len(seen) < MOST:
        at = left.pop(0)
        for taken in at.all_input_nodes:
            if taken not in seen:
                seen.add(taken)
                yield taken
                left += [taken] if is_op(taken, *ELEMENTWISE) else []


def _between(x: Node, last: Node) -> list[Node]:
    """Return the operators from a tensor to a product in order; none where others go into it."""
    found, left = list[Node](), [last]
    while left:
        at = left.pop()
        if at is x or at in found:
            continue
        number = is_op(at, "full") and not at.meta["val"].dim()
        known = number or is_op(at, *ELEMENTWISE)
        if not known or mutates(at) or len(found) == MOST:
            return []
        found.append(at)
        left += at.all_input_nodes
    order = {n: i for i, n in enumerate(last.graph.nodes)}
    return sorted(found, key=order.__getitem__)


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
