"""Attention among a function's nodes: two products with a softmax between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.partition.products import MOST_NODES
from mirage_kernels.generator.partition.reductions import REDUCTIONS, SOFTMAX
from mirage_kernels.generator.partition.rewriting import PRODUCTS
from mirage_kernels.generator.partition.trace import Node

if TYPE_CHECKING:
    from mirage_kernels.generator.partition.groups import Grouping


def attention_of(grouping: Grouping) -> dict[Node, list[Node]]:
    """Return the nodes of each attention, product to product, by each of them."""
    found: dict[Node, list[Node]] = {}
    for softmax in grouping.trace.nodes:
        if operator_of(softmax) in SOFTMAX and softmax not in grouping.calls:
            nodes = [*_back(grouping, softmax), softmax, *_on(grouping, softmax)]
            own = [n for n in nodes if n not in grouping.calls and operator_of(n) in PRODUCTS]
            ends = [n for n in own if grouping.few(n)]
            if len(ends) == 2 and not {*nodes} & {*found, *grouping.calls, *grouping.alone}:
                found |= dict.fromkeys(nodes, nodes)
    return found


def _back(grouping: Grouping, node: Node) -> list[Node]:
    """Return the way from a product to a softmax through elementwise functions."""
    way: list[Node] = []
    while True:
        made = [grouping.seen(a) for a in node.all_input_nodes]
        made = [n for n in made if n.op == "call_function" and n not in grouping.calls]
        before = [n for n in made if _leads(grouping, n)]
        if len(before) != 1 or len(way) > MOST_NODES:
            return []
        (node,) = before
        way.insert(0, node)
        if operator_of(node) in PRODUCTS:
            return way


def _leads(grouping: Grouping, node: Node) -> bool:
    """Say whether a product comes to a node through elementwise functions alone."""
    op = operator_of(node)
    if op in PRODUCTS or op in REDUCTIONS or node in grouping.calls:
        return op in PRODUCTS
    made = [grouping.seen(a) for a in node.all_input_nodes]
    return any(_leads(grouping, n) for n in made if n.op == "call_function")


def _on(grouping: Grouping, node: Node) -> list[Node]:
    """Return the way from a softmax to the product of its weights."""
    way: list[Node] = []
    while len(way) <= MOST_NODES:
        users = [*grouping.users(node)]
        if len(users) != 1 or operator_of(users[0]) in REDUCTIONS:
            return []
        (node,) = users
        way.append(node)
        if operator_of(node) in PRODUCTS:
            return way
    return []
