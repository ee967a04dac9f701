"""Bits of 8-bit whole numbers as numbers, which kernels compute where they take them.

    (q >> 4).to(t)         ->  floor(q.to(t) / 16)
    (q & 15).to(t)         ->  q.to(t) - 16 * floor(q.to(t) / 16)
    ((q << 4) >> 4).to(t)  ->  low - 16 * floor(low / 8) of int8, where low is q & 15
    stack(q, p).to(t)      ->  stack(q.to(t), p.to(t)), where one of them is of bits

So are weights of 4 and 2 bits unpacked. All numbers are exact in 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mirage_kernels.generator.frontend.editing import CASTS, Node, added, cast, is_op, substitute
from mirage_kernels.generator.partition.rewriting import SEEN, regions

_AND = ("__and__", "bitwise_and")
_RIGHT = ("__rshift__", "bitwise_right_shift")
_LEFT = ("__lshift__", "bitwise_left_shift")
_BITS = 8


def bits_as_numbers(graph: Any) -> None:
    """Rewrite casts of bits to numbers, where nothing is written in between."""
    for node in [n for n in graph.nodes if is_op(n, *CASTS)]:
        _cast_pieces(graph, node)
    region = regions(graph)
    for node in [n for n in graph.nodes if is_op(n, *CASTS)]:
        bits, dtype = node.args[0], node.meta["val"].dtype
        if not dtype.is_floating_point or not is_op(bits, *_AND, *_RIGHT):
            continue
        made = _Numbers(graph, node, dtype, region).of(bits)
        if made is not None:
            substitute(graph, node, made)


def _cast_pieces(graph: Any, node: Node) -> None:
    """Cast what is joined before it is, and looked at, where some of it is of bits."""
    joined, way, dtype = node.args[0], list[Node](), node.meta["val"].dtype
    while is_op(joined, *SEEN):
        way.insert(0, joined)
        joined = joined.args[0]
    if not is_op(joined, "stack", "cat") or not dtype.is_floating_point:
        return
    pieces, *more = joined.args
    if not any(is_op(x, *_AND, *_RIGHT) for x in pieces):
        return
    region = regions(graph)
    if region[joined] != region[node]:
        return
    numbers = [cast(graph, node, x, dtype) for x in pieces]
    made = added(graph, node, joined.target, (numbers, *more), **joined.kwargs)
    for view in way:
        made = added(graph, node, view.target, (made, *view.args[1:]), **view.kwargs)
    substitute(graph, node, made)


@dataclass(frozen=True)
class _Numbers:
    """Numbers in a type, in front of the cast that they take the place of."""

    graph: Any
    before: Node
    dtype: Any
    region: dict[Node, int]

    def of(self, x: Any) -> Node | None:
        """Return what 8 bits are as a number; None for other values."""
        import torch

        kinds = (torch.int8, torch.uint8)
        if getattr(x, "op", "") == "" or x.meta["val"].dtype not in kinds:
            return None
        if self.region.get(x) != self.region[self.before]:
            return None
        if not is_op(x, *_AND, *_RIGHT):
            return cast(self.graph, self.before, x, self.dtype)
        given, count = x.args
        if not isinstance(count, int):
            return None
        if is_op(x, *_AND):
            size = count + 1
            number = self.of(given) if 0 < count < 2**_BITS and not size & count else None
            return number and self.low(number, size)
        if is_op(given, *_LEFT) and given.args[1:] == (count,) and 0 < count < _BITS:
            number, size = self.of(given.args[0]), 2 ** (_BITS - count)
            low = number and self.low(number, size)
            signed = low and x.meta["val"].dtype is torch.int8
            return self.minus(low, self.floor(low, size // 2), size) if signed else low
        number = self.of(given) if 0 <= count < _BITS else None
        return number and self.floor(number, 2**count)

    def low(self, x: Node, size: int) -> Node:
        """Return what is left of a number, divided by a size."""
        return self.minus(x, self.floor(x, size), size)

    def minus(self, x: Node, other: Node, times: int) -> Node:
        """Return x - other * times."""
        import torch

        more = self.add(torch.ops.aten.mul.Tensor, other, times)
        return self.add(torch.ops.aten.sub.Tensor, x, more)

    def floor(self, x: Node, size: int) -> Node:
        """Return floor(x / size)."""
        import torch

        return self.add(
            torch.ops.aten.floor.default, self.add(torch.ops.aten.mul.Tensor, x, 1 / size)
        )

    def add(self, target: Any, *args: Any) -> Node:
        """Add an operator."""
        return added(self.graph, self.before, target, args)
