"""One walk over a graph; what the ops mean is said by the reading that is passed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from mirage_kernels.generator.errors import GraphError
from mirage_kernels.generator.ir import Graph, Kind, Node, ops_of_kind

V = TypeVar("V")
Rule = Callable[[Node, Sequence[V]], Sequence[V]]
Reading = Mapping[str, Rule[V]]  # what every op means in one algebra: from operands to results


def reading(rules: Mapping[Kind | str, Rule[V]]) -> dict[str, Rule[V]]:
    """Return rules by op of rules by kind and op; an op's own rule counts before its kind's."""
    of_kinds = {k: rule for k, rule in rules.items() if isinstance(k, Kind)}
    found = {op: rule for kind, rule in of_kinds.items() for op in ops_of_kind(kind)}
    found.pop("input", None)  # which the walk binds
    return found | {op: rule for op, rule in rules.items() if isinstance(op, str)}


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
