"""Tensors that a function makes of numbers, or finds outside of what it is called with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mirage_kernels.generator.frontend.editing import (
    Node,
    added,
    is_op,
    is_view,
    mutates,
    number,
    substitute,
)


def with_numbers(program: Any) -> None:
    """Write single elements that a function makes of numbers as such.

    Others that it makes, or finds outside, stay inputs: `constants_of` has their values.
    """
    graph, known = program.graph, constants_of(program)
    _with_slices(graph, known)
    for node in [n for n in graph.nodes if is_op(n, "detach") and mutates_alone(n)]:
        substitute(graph, node, node.args[0])
    for node in [n for n in graph.nodes if n in known and known[n].numel() == 1]:
        value = known[node]
        first = next(n for n in graph.nodes if n.op != "placeholder")
        made = number(graph, first, value.shape, value.item(), value.dtype)
        made.meta = {**node.meta, "val": node.meta["val"]}
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    _folded(graph)


def _folded(graph: Any) -> None:
    """Compute what single elements that are known give, as `torch.sqrt(torch.tensor(2.0))`."""
    import torch

    def known(node: Node) -> torch.Tensor:
        return torch.full(*node.args, dtype=node.meta["val"].dtype)

    for node in [n for n in graph.nodes if n.op == "call_function" and not _may_write(n)]:
        own, made = node.all_input_nodes, node.meta.get("val")
        if not own or not all(is_op(n, "full") and n.meta["val"].numel() == 1 for n in own):
            continue
        if any(map(_may_write, (u for n in own for u in n.users))):
            continue
        if not (isinstance(made, torch.Tensor) and made.is_floating_point() and made.numel() == 1):
            continue
        args, named = torch.fx.node.map_arg((node.args, node.kwargs), known)
        named = {k: x for k, x in named.items() if k != "device"}
        value = node.target(*args, **named).item()
        substitute(graph, node, number(graph, node, made.shape, value, made.dtype))


def _may_write(node: Node) -> bool:
    """Say whether a node writes over its operand, or others may through it."""
    return mutates(node) or is_view(node)


def _with_slices(graph: Any, known: Mapping[Node, Any]) -> None:
    """Write one index along a dim, as of `x[:, [-2]]`, as a slice."""
    import torch

    for node in [n for n in graph.nodes if is_op(n, "index")]:
        at = [i for i, index in enumerate(node.args[1]) if index is not None]
        index = node.args[1][at[0]]
        given = index.args[0] if is_op(index, "lift_fresh_copy") else index
        if len(at) == 1 and given in known and known[given].shape == (1,):
            first = int(known[given])
            taken = (node.args[0], at[0], first, first + 1 or sys.maxsize)
            substitute(graph, node, added(graph, node, torch.ops.aten.slice.Tensor, taken))


def mutates_alone(node: Node) -> bool:
    """Say whether an operator writes over what a constant is copied to."""
    return mutates(node) and is_op(node.args[0], "lift_fresh_copy")


def constants_of(program: Any) -> dict[Node, Any]:
    """Return the tensors of an exported program that are neither inputs nor a module's own."""
    specs = program.graph_signature.input_specs
    named = ((s, str(s.target).rpartition(".")[2]) for s in specs)
    targets = {s.arg.name: s.target for s, own in named if own.startswith("lifted_tensor_")}
    nodes = (n for n in program.graph.nodes if n.op == "placeholder" and n.name in targets)
    return {n: program.constants[targets[n.name]] for n in nodes}
