"""What makes a muGraph attention: one product of queries and keys, and the roles of its dims.

Lines of a cache may be keys and values alike, with more of the keys beside them (latent attention).
Scores are the sum of two products then: of queries with the lines whose values are summed, and of
what else queries have with the rest of the keys, along a dim of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mirage_kernels.generator.ir import OPS, Dim, Graph, Kind, Node
from mirage_kernels.generator.schedules.attention.program import AttentionRoles, require


def roles_of(node: Node, body: Graph) -> tuple[AttentionRoles, list[Node]]:
    """Return the roles of dims, and the products of queries and keys; `body`: no thread graphs.

    Roles follow from how keys and queries are stored: keys by sequence, position, perhaps head, and
    depth, which is what their product contracts; queries by sequence, perhaps token, head, head of
    the group, and depth. Raises PlanError for a block that is no attention, and for other dims.
    """
    keys = _looped(node, body)
    scores, *more = products = _score_products(body, keys)
    sides = sorted(scores.args, key=lambda a: keys not in body.values[a].type.names)
    of_keys, of_queries = (_stored(side, body) for side in sides)
    depth, names = scores.over, ", ".join(d.name for d in of_keys)
    by_sequence = len(of_keys) in (3, 4) and (of_keys[1].name, of_keys[-1].name) == (keys, depth)
    require(by_sequence, f"keys are stored as [{names}], not by sequence, {keys}, head and {depth}")
    heads, rows = of_keys[2:-1], tuple(d for d in of_queries if d not in of_keys)
    wanted = [of_keys[0], *rows[:-1], *heads, *rows[-1:], of_keys[-1]]
    names = ", ".join(d.name for d in of_queries)
    require(
        1 <= len(rows) <= 2 and list(of_queries) == wanted,
        f"queries are stored as [{names}], not by sequence, token, head and group",
    )
    for dim in (*of_keys[:-1], *rows):
        require(
            dim.dynamic,
            f"{dim.name} is static, this plan takes all dims but {depth} at run time",
            f'name it in the recipe: dynamic={{"{dim.name}": ...}}',
        )
    compiled = not of_keys[-1].dynamic
    require(compiled, f"{depth} is dynamic, this plan takes its extent when it is compiled")
    roles = AttentionRoles(
        keys=keys,
        depth=depth,
        rows=tuple(d.name for d in rows),
        heads=heads[0].name if heads else "",
        sequences=of_keys[0].name,
        more=more[0].over if more else "",
    )
    return roles, products


def _looped(node: Node, body: Graph) -> str:
    """Return the dim of the loop, which must be the one that blocks split."""
    assert body.space is not None
    require(body.space.loop is not None, f"{node.name} has no loop over keys")
    assert body.space.loop is not None
    keys, split = body.space.loop.dim, [axis.dim for axis in body.space.reduced]
    names = ", ".join(split) or "nothing"
    require(split == [keys], f"{node.name}: its blocks split {names}, this plan splits {keys}")
    return keys


def _score_products(body: Graph, keys: str) -> list[Node]:
    """Return the product of keys and queries, then that of what else the keys have, if any.

    Either is of one operand along the keys and one that is not. Of two, the first one's keys are
    what the product over the keys sums, too.
    """

    def is_of_keys(node: Node) -> bool:
        sides = [{*body.values[a].type.names} for a in node.args]
        alone = node.over != keys and sum(keys in s for s in sides) == 1
        return alone and len(set().union(*sides)) > 3

    products = body.of("contract")
    summed = {a for node in products if node.over == keys for a in node.args}
    found = sorted(filter(is_of_keys, products), key=lambda node: not summed & {*node.args})
    latent = len(found) == 2 and summed & {*found[0].args} and found[0].over != found[1].over
    require(
        len(found) == 1 or latent,
        f"this plan has one product of keys and queries, the muGraph {named(found)}",
    )
    return found


def named(nodes: Sequence[Node]) -> str:
    """Return the names of nodes, for a message."""
    return " and ".join(n.name for n in nodes) or "none"


def _stored(operand: str, body: Graph) -> tuple[Dim, ...]:
    """Return the dims, in storage order, of the widest input that an operand is made of."""
    inputs = [n.out.type.dims for n in _sources(operand, body) if n.op == "input"]
    return max(inputs, key=len, default=())


def _sources(name: str, body: Graph) -> Iterator[Node]:
    """Yield what a value is made of elementwise; a sum or a product is a source of its own."""
    node = body.producers[name]
    if OPS[node.op].kind is not Kind.ELEMENTWISE:
        yield node
        return
    for arg in node.args:
        yield from _sources(arg, body)
