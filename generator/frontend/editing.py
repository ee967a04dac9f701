"""How graphs that torch.export made are changed, a node at a time."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.frontend.export import CASTS as CASTS
from mirage_kernels.generator.frontend.export import VIEWS, operator_of

if TYPE_CHECKING:
    import torch

Node = Any  # torch.fx.Node


def is_op(node: Node, *ops: str) -> bool:
    """Say whether a node calls one of some operators."""
    return node.op == "call_function" and operator_of(node) in ops


def is_view(node: Node) -> bool:
    """Say whether a node only looks at its operand in another way."""
    called = node.op == "call_function"  # an input may have the name of an operator
    return called and (node.target is operator.getitem or operator_of(node) in VIEWS)


def added(graph: Any, before: Node, target: Any, args: tuple[Any, ...], **named: Any) -> Node:
    """Add an operator in front of a node."""
    import torch

    with graph.inserting_before(before):
        made = graph.call_function(target, args, named)
    given, kept = torch.fx.node.map_arg((args, named), lambda n: n.meta["val"])
    made.meta = {**before.meta, "val": target(*given, **kept)}
    return made


def cast(graph: Any, before: Node, x: Node, dtype: torch.dtype) -> Node:
    """Return a value in a type, in front of a node; the value itself where it has that."""
    import torch

    if x.meta["val"].dtype is dtype:
        return x
    return added(graph, before, torch.ops.aten.to.dtype, (x, dtype))


def number(
    graph: Any, before: Node, shape: Sequence[int], value: float, dtype: torch.dtype
) -> Node:
    """Add a tensor that is full of a number in front of a node."""
    import torch

    named = {"dtype": dtype, "device": torch.device("cpu")}
    return added(graph, before, torch.ops.aten.full.default, ([*shape], value), **named)


def substitute(graph: Any, node: Node, made: Node) -> None:
    """Let a node take the place of another, and erase that and what was made for it alone."""
    node.replace_all_uses_with(made)
    todo = [node]
    while todo:
        gone = todo.pop()
        if not gone.users and gone.op == "call_function":
            todo += gone.all_input_nodes
            graph.erase_node(gone)


def taken_by(node: Node) -> list[Node]:
    """Return the nodes that a node takes, one that it takes twice twice."""
    import torch

    found: list[Node] = []
    torch.fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


def with_taken(node: Node, others: Mapping[int, Node]) -> tuple[Any, Any]:
    """Return a node's arguments with others for some of the nodes that it takes, by number."""
    import torch

    numbers = itertools.count()

    def replaced(taken: Node) -> Node:
        return others.get(next(numbers), taken)

    given: tuple[Any, Any] = torch.fx.node.map_arg((node.args, node.kwargs), replaced)
    return given


def upstream(node: Node, among: Collection[Node]) -> set[Node]:
    """Return a node and what it is made of, of some nodes."""
    found, left = set[Node](), [node]
    while left:
        at = left.pop()
        if at in among and at not in found:
            found.add(at)
            left += at.all_input_nodes
    return found


def mutates(node: Node) -> bool:
    """Say whether an operator writes over one of its operands."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def arguments_of(node: Node) -> dict[str, Any]:
    """Return an ATen operator's arguments by name, those that it leaves out too."""
    schema = node.target._schema.arguments
    given = dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
    return {a.name: given.get(a.name, a.default_value) for a in schema}
