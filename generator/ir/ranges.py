"""Values that whole numbers of a program are drawn from: those where its comparisons matter.

A length is compared with positions, from where it hides all but one to where it hides none; what
is compared with other inputs or numbers is one of few, and what is computed with alone is above 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from mirage_kernels.generator.ir.graph import Graph, Node

Terms = Counter[str]  # factors of inputs and of positions, by their nodes, and of 1 as ""
_RANGE = re.compile(r"(\w+)\.\.(\w+)(?:/(\d+))?([+-]\d+)?")  # 1..L, 0..L-1, 1..L/16

_LARGEST = 4096  # of numbers that are compared with nothing


def ends_of(text: str, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the least and the largest of some values at these extents, None where that is none."""
    found = _RANGE.fullmatch(text)
    if not found or not all(e.isdigit() or e in sizes for e in found.group(1, 2)):
        return None
    least, largest = (int(e) if e.isdigit() else sizes[e] for e in found.group(1, 2))
    largest = -(-largest // int(found[3] or 1))
    return least, max(least, largest + int(found[4])) if found[4] else largest


def ranges_of(graph: Graph) -> dict[str, str]:
    """Return the values of a graph's int32 inputs, by their names, as recipes give them."""
    compared = [*_compared(graph)] if graph.whole else []
    return {name: _range(graph, name, [t for t in compared if t[name]]) for name in graph.whole}


def _compared(graph: Graph) -> Iterator[Terms]:
    """Yield what is above 0 where one of a graph's comparisons holds."""
    for node in graph.of("less"):
        a, b = (_terms(graph.producers, name) for name in node.args)
        b.subtract(a)
        yield Counter({n: f for n, f in b.items() if f})


def _terms(nodes: Mapping[str, Node], name: str) -> Terms:
    """Return a whole number as a sum; a product but by a number is one of its terms."""
    node = nodes[name]
    if node.op == "const":
        return Counter({"": int(node.value)})
    if node.op in ("add", "sub"):
        made, other = (_terms(nodes, a) for a in node.args)
        (made.update if node.op == "add" else made.subtract)(other)
        return made
    if node.op == "mul" and (scale := [a for a in node.args if nodes[a].op == "const"]):
        (other_name,) = {*node.args} - {scale[0]} or {scale[0]}
        factor = int(nodes[scale[0]].value)
        return Counter({n: f * factor for n, f in _terms(nodes, other_name).items()})
    return Counter({name: 1})


def _range(graph: Graph, name: str, compared: list[Terms]) -> str:
    """Return the values of one input, by the longest dim whose positions it is compared with.

    A length hides none of the positions at its largest value, all but one at its least; a start
    the other way round; where a number counts pages of positions, in these. What is compared with
    other inputs as well is at most the longest such dim.
    """
    if not compared:
        return f"1..{_LARGEST}"
    over = {n.name: n.out.type.dims[0] for n in graph.of("iota")}
    least, most, largest = 0, 0, str(max(abs(terms[""]) for terms in compared) + 1)
    if any(terms.keys() - {*over, "", name} for terms in compared):
        longest = max(over.values(), key=lambda dim: dim.size, default=None)
        return f"1..{longest.name}" if longest else f"{least}..{largest}"
    for terms in compared:
        sign, more = (1, -terms[""]) if terms[name] > 0 else (-1, terms[""] - 2)
        each = abs(terms[name])
        more = -(-more // each)
        against = [over[n] for n, f in terms.items() if n in over and f * sign < 0]
        least = max(least, 1 + more) if against and sign > 0 else least
        for dim in (d for d in against if d.size > most):
            pages = f"{dim.name}/{each}" if each > 1 else dim.name
            most, largest = dim.size, f"{pages}{more:+d}" if more else pages
    return f"{least}..{largest}"
