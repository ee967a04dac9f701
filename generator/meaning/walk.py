"""One walk over a graph; what the ops mean is said by the reading that is passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir import Graph, Node

V = TypeVar("V")
Rule = Callable[[Node, Sequence[V]], Sequence[V]]
Reading = Mapping[str, Rule[V]]  # what every op means in one algebra: from operands to results


def walk(graph: Graph, inputs: Sequence[V], reading: Reading[V]) -> dict[str, V]:
    """Return the meaning of every value of `graph`, its inputs bound in order."""
    if len(inputs) != len(graph.inputs):
        raise GraphError(f"{len(graph.inputs)} inputs are expected, {len(inputs)} are given")
    found = dict(zip((n.name for n in graph.inputs), inputs, strict=True))
    for node in graph.nodes:
        if node.op != "input":
            results = reading[node.op](node, [found[a] for a in node.args])
            found.update(zip((v.name for v in node.outs), results, strict=True))
    return found


def results(graph: Graph, inputs: Sequence[V], reading: Reading[V]) -> list[V]:
    """Return the meaning of the graph's outputs, in order."""
    found = walk(graph, inputs, reading)
    return [found[name] for name in graph.outputs]
