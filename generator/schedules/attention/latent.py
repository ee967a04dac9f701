"""Latent attention: lines of the cache are keys and values alike, and keys have more beside them.

Scores are the sum of two products then: of queries with the lines whose values are summed, and of
what else queries have with the rest of the keys, along a dim of their own.
"""

from __future__ import annotations

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import Graph, Node


def score_products(body: Graph, keys: str) -> tuple[Node, Node | None]:
    """Return the product of keys and queries, and that of what else the keys have.

    Either is of one operand along the keys and one that is not. Of two, the first one's keys are
    what the product over the keys sums, too.
    """
    found = [node for node in body.of("contract") if _is_of_keys(node, body, keys)]
    summed = {a for node in body.of("contract") if node.over == keys for a in node.args}
    first = sorted(found, key=lambda node: not summed & {*node.args})
    latent = len(found) == 2 and summed & {*first[0].args} and first[0].over != first[1].over
    if len(found) != 1 and not latent:
        names = " and ".join(n.name for n in found) or "none"
        raise PlanError(f"this plan has one product of keys and queries, the muGraph {names}")
    return first[0], first[1] if latent else None


def _is_of_keys(node: Node, body: Graph, keys: str) -> bool:
    sides = [{*body.values[a].type.names} for a in node.args]
    return node.over != keys and sum(keys in s for s in sides) == 1 and len(set().union(*sides)) > 3
