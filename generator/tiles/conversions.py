"""Operands that are computed: how they lie for tensor cores, and conversions of those of 8 bits."""

from __future__ import annotations

from dataclasses import replace

from mirage_kernels.generator.ir import Dim, Graph, Node, Value
from mirage_kernels.generator.ir.dtypes import EIGHT_BITS, STORAGE_DTYPES
from mirage_kernels.generator.ir.infer import SCALAR

ONE, CONVERTED = "_one", "_converted"  # behind the name of an operand


def converted(graph: Graph) -> tuple[Node, ...]:
    """Return the blocks of a muGraph, which multiply what they have converted.

    The other operand's type holds every number of theirs. A conversion is a product with 1.
    """
    bodies = ((n, n.body) for n in graph.blocks)
    return tuple(replace(n, body=_converting(body)) if body else n for n, body in bodies)


def operand_dims(body: Graph, over: str, name: str) -> tuple[Dim, ...]:
    """Return the dims of a product's operand as its tile has them.

    What is computed of several values lies along the sum; what is of one tensor lies as that does.
    """
    made = body.producers[name]
    given = [a for a in made.args if body.values[a].type.dims]
    as_given = not made.args or [body.producers[a].op for a in given] == ["input"]
    dims = made.out.type.dims
    return dims if as_given else tuple(sorted(dims, key=lambda d: d.name == over))


def _converting(body: Graph) -> Graph:
    nodes, made = list[Node](), dict[str, str]()
    for node in body.nodes:
        for name, other in zip(node.args, node.args[::-1], strict=True):
            if node.op != "contract" or not _is_converted(body, name, other):
                continue
            if name not in made:
                made[name] = f"{name}{CONVERTED}"
                nodes.append(Node("const", (), (Value(f"{name}{ONE}", SCALAR),), value=1.0))
                type_ = replace(body.values[name].type, dtype=body.values[other].type.dtype)
                args = (name, f"{name}{ONE}")
                nodes.append(Node("mul", args, (Value(made[name], type_),)))
            node = replace(node, args=tuple(made[name] if a == name else a for a in node.args))
        nodes.append(node)
    return replace(body, nodes=tuple(nodes)) if made else body


def _is_converted(body: Graph, name: str, other: str) -> bool:
    own = body.values[name].type.dtype in EIGHT_BITS
    return own and body.values[other].type.dtype in STORAGE_DTYPES
