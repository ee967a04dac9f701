"""Distances that conditions compare with, shortened so that short extents show what they hide.

A window of 512 keys hides none of the few that a proof draws: a program without the window would
prove equal. A program is the same for all such numbers, so proofs, the numeric gate and the
interpreter of tile programs take small ones on both sides: in the same order, neighbours beside
each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from mirage_kernels.generator.ir.dtypes import DType
from mirage_kernels.generator.ir.graph import Graph, Node

LONGEST = 3  # places that extents of proofs have


@dataclass(frozen=True)
class Distances:
    """What stands for the whole numbers of a graph that are larger than extents show."""

    known: Mapping[int, int]

    @staticmethod
    def of(graph: Graph, longest: int = LONGEST) -> Distances:
        """Return shorter distances than those of a graph, and of its blocks, beyond the longest."""
        numbers, known = sorted({abs(int(n.value)) for n in _numbers(graph)}), dict[int, int]()
        longer = [n for n in numbers if n > longest]
        now = max(longest - 1, *(n for n in (0, *numbers) if n <= longest))
        for before, number in pairwise([*(n - 1 for n in longer[:1]), *longer]):
            known[number] = now = now + min(number - before, 2)
        return Distances(known)

    def short(self, graph: Graph) -> Graph:
        """Return a graph, and its blocks, with these distances."""
        if not self.known or not any(True for _ in _numbers(graph)):
            return graph
        return replace(graph, nodes=tuple(map(self._changed, graph.nodes)))

    def number(self, value: int) -> int:
        """Return what stands for a number; above a distance for one as much more than that."""
        largest = max((n for n in self.known if n <= abs(value)), default=None)
        if largest is None:
            return value
        made = self.known[largest] + abs(value) - largest
        return made if value > 0 else -made

    def _changed(self, node: Node) -> Node:
        if node.body is not None:
            return replace(node, body=self.short(node.body))
        return replace(node, value=self.number(int(node.value))) if _is_number(node) else node


def _is_number(node: Node) -> bool:
    return node.op == "const" and node.out.type.dtype is DType.INT32


def _numbers(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        if node.body is not None:
            yield from _numbers(node.body)
        elif _is_number(node):
            yield node
