"""Exponentials that others are made of: the proofs have one law, and it is the outer one's.

exp(a + b) = exp(a) exp(b) holds in the field for sums of what has been through no exp. So what is
below another one becomes `inner_exp`, of which proofs only know that equal numbers have equal
results, as of `tanh`. One that is summed up stays an `exp`: its sum needs a peak, which comes from
that law, and the program is refused, or cut in two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from mirage_kernels.generator.ir import OPS, Graph, Kind


def with_inner_exps(graph: Graph) -> Graph:
    """Return a kernel graph whose elementwise exponentials below others are `inner_exp`."""
    exps = {n.name for n in graph.of("exp")}
    taken = {n.name: n.args for n in graph.nodes}
    users: dict[str, list[str]] = {}
    for node in graph.nodes:
        for argument in node.args:
            users.setdefault(argument, []).append(node.name)

    def elementwise(name: str) -> bool:
        node = graph.producers[name]  # exp(log(x)) is x
        return OPS[node.op].kind is Kind.ELEMENTWISE and node.op != "log"

    def below(name: str) -> list[str]:
        return [a for a in taken.get(name, ()) if elementwise(a)]

    def above(name: str) -> list[str]:
        return [] if name in exps else users.get(name, [])

    inner = _reached((a for name in exps for a in below(name)), below) & exps
    inner = {n for n in inner if all(map(elementwise, _reached(users[n], above)))}
    nodes = (replace(n, op="inner_exp") if n.name in inner else n for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes)) if inner else graph


def _reached(first: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    found, left = set[str](), [*first]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += following(name)
    return found
