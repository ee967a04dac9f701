"""Thread graphs by rule: elementwise chains that nothing else looks into run in registers.

a = f(x); b = g(a, y)  ->  b = thread(x, y) { a = f(x); g(a, y) }   if b is the only user of a,
both run in the same phase, and a is not an operand of a contraction.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.ir import OPS, Graph, Kind, Level, Node, Value, check, phases_of


def with_threads(graph: Graph) -> Graph:
    """Return the muGraph with every elementwise chain of its block graphs made a thread graph."""
    nodes = tuple(
        replace(n, body=_fused(n.body)) if n.op == "block" and n.body is not None else n
        for n in graph.nodes
    )
    return check(replace(graph, nodes=nodes))


def _fused(body: Graph) -> Graph:
    phases = phases_of(body)
    ends: dict[str, str] = {}  # of each elementwise operator the last one of its chain
    for node in reversed(body.nodes):
        if OPS[node.op].kind is Kind.ELEMENTWISE:
            users = [u.name for u in body.users(node.name)]
            joins = len(users) == 1 and users[0] in ends
            joins = joins and phases[users[0]] is phases[node.name]
            ends[node.name] = ends[users[0]] if joins else node.name
    nodes = []
    for node in (n for n in body.nodes if ends.get(n.name, n.name) == n.name):
        chain = [n for n in body.nodes if ends.get(n.name) == node.name]
        if len(chain) > 1:
            made = {n.name for n in chain}
            reads = tuple(dict.fromkeys(a for n in chain for a in n.args if a not in made))
            inputs = (Node("input", (), (Value(r, body.values[r].type),)) for r in reads)
            inner = Graph(Level.THREAD, (*inputs, *chain), (node.name,))
            node = Node("thread", reads, node.outs, body=inner)
        nodes.append(node)
    return replace(body, nodes=tuple(nodes))


def without_threads(body: Graph) -> Graph:
    """Return a block graph with the nodes of its thread graphs in their place."""
    nodes: list[Node] = []
    for node in body.nodes:
        if node.op != "thread":
            nodes.append(node)
            continue
        assert node.body is not None
        names = dict(zip((n.name for n in node.body.inputs), node.args, strict=True))
        names[node.body.outputs[0]] = node.name
        for inner in (n for n in node.body.nodes if n.op != "input"):
            name = names.setdefault(inner.name, inner.name)
            args = tuple(names[a] for a in inner.args)
            nodes.append(replace(inner, outs=(Value(name, inner.out.type),), args=args))
    return replace(body, nodes=tuple(nodes))
