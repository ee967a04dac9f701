"""Parts of a spec that are searched as if they were inputs, and computed as the spec says.

Where both operands of a product are sums of several products, the terms of all that could be made
of them are too many to search through. What such a part sums along dims that are never cut lies
within a tile, wherever the tile is: the parts are left out of the search, which then finds programs
of a smaller spec. A part has no product of two tensors and no exp: there the order of evaluation
matters. Found programs view parts by their names in the whole spec; lowering computes them.

Sums of inputs that are never cut, such as weights stored less 1, are parts of any spec: multiplying
them out is what makes sums long. So are results beside the output that the output needs: they are
stored and computed anyway, elementwise, so that any tile of one follows from tiles of inputs. Other
results are left out of the search: lowering computes them in the tiles of the output's last kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from mirage_kernels.generator.ir import OPS, Graph, Kind, Node, ops_of_kind

SOURCES = ("input", "const", "size", "iota")


def folded(spec: Graph, long: Collection[str]) -> Graph:
    """Return the spec with its parts as inputs; dims in `long` may be cut."""
    inside: set[str] = set()
    summing: set[str] = set()
    for node in spec.nodes:
        local = node.op == "sum" and node.over not in long
        plain = OPS[node.op].kind is Kind.ELEMENTWISE and node.op != "exp"
        if node.op in SOURCES or (inside >= {*node.args} and (local or plain)):
            inside.add(node.name)
        if node.op == "sum" or summing & {*node.args}:
            summing.add(node.name)
    if spec.outputs[0] in inside:
        return spec
    return _without(spec, [name for name in _leaving(spec, inside) if name in summing])


def beside(spec: Graph, long: Collection[str]) -> Graph:
    """Return the spec of the output alone, with results beside it that it needs as inputs.

    Not if it sums nothing then: a block that scales a row holds the row that its scale is made of.
    """
    output, *also = spec.outputs
    needed = _leading_to(spec, [output])
    alone = replace(spec, outputs=(output,))
    made = _cut(alone, [name for name in also if name in needed]) if also else spec
    sums = ops_of_kind(Kind.REDUCE, Kind.CONTRACT)
    return made if made.of(*sums) or not alone.of(*sums) else _cut(alone, ())


def shifted(spec: Graph, long: Collection[str]) -> Graph:
    """Return the spec with its sums of inputs as inputs."""
    inside: set[str] = set()
    for node in spec.nodes:
        whole = node.out.type.dtype.is_real and not {*node.out.type.names} & {*long}
        within = node.op in ("add", "sub") and inside >= {*node.args}
        if whole and (node.op in ("input", "const") or within):
            inside.add(node.name)
    return _without(spec, _leaving(spec, inside))


def _leaving(spec: Graph, inside: set[str]) -> list[str]:
    """Return the computed tensors of a set that something outside of it uses."""
    return [
        n.name
        for n in spec.nodes
        if n.name in inside
        and n.args
        and n.out.type.dims
        and any(user.name not in inside for user in spec.users(n.name))
    ]


def _without(spec: Graph, roots: Sequence[str]) -> Graph:
    """Return the spec with some values as inputs, and nothing that only those need."""
    return _cut(spec, roots) if roots else spec


def _cut(spec: Graph, roots: Sequence[str]) -> Graph:
    kept = _leading_to(spec, spec.outputs, stop=roots)
    own = [n for n in spec.inputs if n.name in kept]
    inputs = [Node("input", (), (spec.values[root],)) for root in roots]
    rest = [n for n in spec.nodes if n.name in kept and n.op != "input"]
    return replace(spec, nodes=(*own, *inputs, *rest))


def _leading_to(spec: Graph, results: Collection[str], stop: Collection[str] = ()) -> set[str]:
    """Return the values that some results need, but for what leads to those in `stop`, and them."""
    needed: set[str] = set()
    todo = [*results]
    while todo:
        name = todo.pop()
        if name not in needed and name not in stop:
            needed.add(name)
            todo += spec.producers[name].args
    return needed


def part(spec: Graph, *roots: str) -> list[Node]:
    """Return the nodes that make some values; a sum of products is a contraction."""
    needed = _leading_to(spec, roots)
    nodes = [n for n in spec.nodes if n.name in needed]
    made: list[Node] = []
    for node in nodes:
        factors = spec.producers[node.args[0]] if node.op == "sum" else node
        alone = [u.name for u in nodes if factors.name in u.args] == [node.name]
        alone = alone and factors.name not in roots
        if node.op == "sum" and factors.op in ("mul", "square") and alone:
            a, b = (*factors.args, *factors.args)[:2]
            node = replace(node, op="contract", args=(a, b))
            made = [n for n in made if n.name != factors.name]
        made.append(node)
    return made
