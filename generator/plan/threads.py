"""Thread graphs by rule: elementwise chains that nothing else looks into run in registers.

a = f(x); b = g(a, y)  ->  b = thread(x, y) { a = f(x); g(a, y) }   if b is the only user of a,
both run in the same phase, and a is not an operand of a contraction.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.ir import (
    OPS,
    Graph,
    Kind,
    Level,
    Node,
    Value,
    check,
    phases_of,
)


def with_threads(graph: Graph) -> Graph:
    """Return the muGraph with every elementwise chain of its block graphs made a thread graph."""
    nodes = tuple(
        replace(n, body=_fused(n.body)) if n.op == "block" and n.body is not None else n
        for n in graph.nodes
    )
    return check(replace(graph, nodes=nodes))


def _fused(body: Graph) -> Graph:
    swallowed = {n.name for n in body.nodes if _joins_its_user(n, body)}
    nodes = []
    for node in body.nodes:
        if node.name in swallowed:
            continue
        if OPS[node.op].kind is Kind.ELEMENTWISE and swallowed & set(node.args):
            node = _thread(node, body, swallowed)
        nodes.append(node)
    return replace(body, nodes=tuple(nodes))


def _joins_its_user(node: Node, body: Graph) -> bool:
    users = body.users(node.name)
    if OPS[node.op].kind is not Kind.ELEMENTWISE or len(users) != 1:
        return False
    phases = phases_of(body)
    same_phase = phases[node.name] is phases[users[0].name]
    return same_phase and OPS[users[0].op].kind is Kind.ELEMENTWISE


def _thread(last: Node, body: Graph, swallowed: set[str]) -> Node:
    chain = _chain(last, body, swallowed)
    made = {n.name for n in chain}
    reads = tuple(dict.fromkeys(a for n in chain for a in n.args if a not in made))
    inputs = tuple(Node("input", (), (Value(r, body.values[r].type),)) for r in reads)
    inner = Graph(Level.THREAD, (*inputs, *chain), (last.name,))
    return Node("thread", reads, last.outs, body=inner)


def _chain(last: Node, body: Graph, swallowed: set[str]) -> tuple[Node, ...]:
    """Return the chain that ends in `last`, in the block graph's order."""
    names = {last.name}
    for node in reversed(body.nodes):
        if node.name in swallowed and body.users(node.name)[0].name in names:
            names.add(node.name)
    return tuple(n for n in body.nodes if n.name in names)
