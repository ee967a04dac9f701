"""Conditions on a function's numbers, as numbers: 1 where they hold, 0 elsewhere.

    x > y                   ->  gt(x, y)               x < y  ->  gt(y, x)
    x == y                  ->  ge(x, y) * ge(y, x)    x != y ->  1 - ge(x, y) * ge(y, x)
    a & b, a | b, ~a        ->  a * b, max(a, b), 1 - a
    where(a, x, y)          ->  masked(a, x) + masked(1 - a, y)
    masked_fill(x, a, n)    ->  a * n + masked(1 - a, x)
    x * (y > 0), float(a)   ->  as they are, of numbers

    abs(i) <= n             ->  (i <= n) & (i >= -n), of whole numbers: a mask still

masked(a, x) is x where a is not 0, and 0 elsewhere, whatever x is there. Conditions on positions
and boolean tensors are masks (frontend/masks.py), and one that anything else takes stays PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mirage_kernels.generator.frontend.editing import (
    CASTS,
    Node,
    added,
    cast,
    is_op,
    mutates,
    substitute,
)
from mirage_kernels.generator.frontend.export import operator_of

_COMPARED = ("gt", "ge", "lt", "le", "eq", "ne")
_JOINED = (
    *("logical_and", "bitwise_and", "__and__", "logical_or", "bitwise_or", "__or__"),
    *("logical_not", "bitwise_not"),
)
_CHOOSING = ("where", "masked_fill")
_COUNTING = ("mul", "add", "sub", "rsub", "div")  # that take a condition as a number
WHOLE_BYTES = 4  # of whole numbers that hardly anything uses to its ends


def as_numbers(graph: Any) -> None:
    """Rewrite the conditions of a graph, and what takes them."""
    from mirage_kernels import program_operators  # noqa: F401  (registers them)

    for node in [*graph.nodes]:
        if is_op(node, "lt", "le", "gt", "ge") and _compares_absolute(node):
            _without_absolute(graph, node)
    _Conditions(graph).rewrite()


def _compares_absolute(node: Node) -> bool:
    """Say whether the absolute value of a whole number is compared with a number.

    Of those of few bits the least has no absolute value: abs(-128) is -128 in int8.
    """
    x, n = node.args
    own = x.meta["val"] if is_op(x, "abs") else None
    of_whole = own is not None and not own.is_floating_point() and own.dtype.itemsize >= WHOLE_BYTES
    return of_whole and isinstance(n, int) and not mutates(node)


def _without_absolute(graph: Any, node: Node) -> None:
    """Compare a whole number with both ends of where its absolute value is."""
    import torch

    aten, (x, n) = torch.ops.aten, node.args
    within = (aten.le.Scalar, aten.ge.Scalar)
    if is_op(node, "lt", "ge"):
        within = (aten.lt.Scalar, aten.gt.Scalar)
    ends = [added(graph, node, op, (x.args[0], m)) for op, m in zip(within, (n, -n), strict=True)]
    made = added(graph, node, aten.logical_and.default, tuple(ends))
    if is_op(node, "gt", "ge"):
        made = added(graph, node, aten.logical_not.default, (made,))
    substitute(graph, node, made)


@dataclass
class _Conditions:
    graph: Any
    made: dict[Node, Node] = field(default_factory=dict)  # the number of a condition

    def rewrite(self) -> None:
        """Rewrite what all its users can take as numbers, the operands of each first."""
        found = self.found()
        for node in [*self.graph.nodes]:
            if node in found:
                self.made[node] = self.number(node)
            elif found & {*node.all_input_nodes}:
                self.take(node)
        for node in reversed([n for n in self.graph.nodes if n in found]):
            self.graph.erase_node(node)

    def found(self) -> set[Node]:
        """Return the conditions that can be numbers."""
        found, varying = set[Node](), set[Node]()
        for node in self.graph.nodes:
            own = {*node.all_input_nodes}
            if node.op == "placeholder" or own & varying:
                varying.add(node)
            compares = is_op(node, *_COMPARED) and any(
                n in varying and n.meta["val"].is_floating_point() for n in own
            )
            joins = is_op(node, *_JOINED) and own and own <= found
            if (compares or joins) and not mutates(node):
                found.add(node)
        while wrong := {n for n in found if not self.is_taken(n, found)}:
            found -= wrong
        return found

    def is_taken(self, node: Node, found: set[Node]) -> bool:
        """Say whether a condition is made of others that can be numbers, as all users can take."""
        own = {n for n in node.all_input_nodes if is_op(node, *_JOINED)}
        return own <= found and all(u in found or _takes(u, node) for u in node.users)

    def number(self, node: Node) -> Node:
        """Return a condition as a number."""
        import torch

        aten, op = torch.ops.aten, operator_of(node)
        operands = [self.made.get(a, a) for a in node.args]
        if op in ("logical_not", "bitwise_not"):
            return self.opposite(node, operands[0])
        if op in _JOINED:
            joined = aten.mul.Tensor if "and" in op else aten.maximum.default
            return self.add(node, joined, *operands)
        a, b = operands
        if op in ("gt", "ge"):
            return self.compared(node, op, a, b)
        if op in ("lt", "le"):
            return self.compared(node, {"lt": "gt", "le": "ge"}[op], b, a)
        both = [self.compared(node, "ge", *pair) for pair in ((a, b), (b, a))]
        equal = self.add(node, aten.mul.Tensor, *both)
        return equal if op == "eq" else self.opposite(node, equal)

    def compared(self, node: Node, op: str, a: Any, b: Any) -> Node:
        """Return whether a > b or a >= b; a number n behind the other side: -a > -n is n > a."""
        import torch

        if not isinstance(a, type(node)):
            a, b = self.add(node, torch.ops.aten.neg.default, b), -a
        kind = "tensor" if isinstance(b, type(node)) else "default"
        return self.add(node, getattr(getattr(torch.ops.mirage_kernels, op), kind), a, b)

    def opposite(self, before: Node, x: Node) -> Node:
        """Return 1 - x."""
        import torch

        return self.add(before, torch.ops.aten.rsub.Scalar, x, 1)

    def take(self, node: Node) -> None:
        """Let what takes a condition take a number."""
        if not is_op(node, *_CHOOSING):
            args = _of_numbers(node.args, self.made)
            made = self.add(node, node.target, *args, **node.kwargs)
        else:
            made = self.chosen(node)
        substitute(self.graph, node, cast(self.graph, node, made, node.meta["val"].dtype))

    def chosen(self, node: Node) -> Node:
        """Return where(c, a, b) as a sum."""
        import torch

        mask, inside, outside = _choice(node)
        condition = self.made[mask]
        other = self.opposite(node, condition)
        sides = [self.side(node, *pair) for pair in ((condition, inside), (other, outside))]
        return self.add(node, torch.ops.aten.add.Tensor, *sides)

    def side(self, node: Node, condition: Node, x: Any) -> Node:
        """Return a tensor or a number where a condition holds, 0 elsewhere."""
        import torch

        if isinstance(x, type(node)):
            return self.add(node, torch.ops.mirage_kernels.masked.default, condition, x)
        return self.add(node, torch.ops.aten.mul.Tensor, condition, x)

    def add(self, before: Node, target: Any, *args: Any, **named: Any) -> Node:
        """Add an operator in front of a node."""
        return added(self.graph, before, target, args, **named)


def _of_numbers(args: Any, made: Mapping[Node, Node]) -> Any:
    """Return arguments with numbers for conditions."""
    import torch

    return torch.fx.node.map_arg(args, lambda n: made.get(n, n))


def _takes(user: Node, condition: Node) -> bool:
    """Say whether an operator takes a condition as one, or as a number."""
    if user.op != "call_function" or mutates(user):
        return False
    if is_op(user, *_CHOOSING):
        if len(user.args) < 3 or not user.meta["val"].is_floating_point():
            return False
        mask, *sides = _choice(user)
        numbers = (x for x in sides if not hasattr(x, "meta"))
        return mask is condition and condition not in sides and all(map(math.isfinite, numbers))
    floats = hasattr(user.meta.get("val"), "dtype") and user.meta["val"].is_floating_point()
    return is_op(user, *CASTS, *_COUNTING) and floats and not user.kwargs.get("alpha")


def _choice(node: Node) -> tuple[Node, Any, Any]:
    """Return the condition of a choice and both sides; numbers as such."""
    mask, *sides = (node.args[i] for i in ((0, 1, 2) if is_op(node, "where") else (1, 2, 0)))
    inside, outside = (_as_number(x) for x in sides)
    return mask, inside, outside


def _as_number(x: Any) -> Any:
    """Return the number that a tensor is full of, others as they are."""
    return x.args[1] if hasattr(x, "meta") and is_op(x, "full") else x
