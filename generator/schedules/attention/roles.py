"""Which dims of a muGraph are keys, depth, rows, heads and sequences: read off its products."""

from __future__ import annotations

from collections.abc import Iterator

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, Dim, Graph, Kind, Node
from mirage_kernels.generator.schedules.attention.latent import score_products
from mirage_kernels.generator.schedules.attention.program import AttentionRoles


def attention_roles(node: Node, body: Graph) -> AttentionRoles:
    """Return the roles of the dims of one kernel; `body` is its graph without thread graphs.

    The loop's dim is that of the keys, and the blocks split it. What a product contracts besides is
    the depth. Keys are stored by sequence, position, perhaps head, and depth; queries by sequence,
    perhaps token, head, head of the group, and depth. Raises PlanError where a muGraph is not of
    this form.
    """
    keys = _keys(node, body)
    scores, more = score_products(body, keys)
    depth = scores.over
    of_keys, of_queries = _lines(scores, body, keys)
    if len(of_keys) not in (3, 4) or (of_keys[1].name, of_keys[-1].name) != (keys, depth):
        names = ", ".join(d.name for d in of_keys)
        raise PlanError(f"keys are stored as [{names}], not by sequence, {keys}, head and {depth}")
    sequences, heads = of_keys[0], of_keys[2:-1]
    rows = tuple(d for d in of_queries if d not in of_keys)
    wanted = [sequences, *rows[:-1], *heads, *rows[-1:], of_keys[-1]]
    if not 1 <= len(rows) <= 2 or list(of_queries) != wanted:
        names = ", ".join(d.name for d in of_queries)
        raise PlanError(f"queries are stored as [{names}], not by sequence, token, head and group")
    for dim in (*of_keys[:-1], *rows):
        if not dim.dynamic:
            raise PlanError(
                f"{dim.name} is static, this plan takes all dims but {depth} at run time",
                f'name it in the recipe: dynamic={{"{dim.name}": ...}}',
            )
    if of_keys[-1].dynamic:
        raise PlanError(f"{depth} is dynamic, this plan takes its extent when it is compiled")
    row_names = tuple(d.name for d in rows)
    head = heads[0].name if heads else ""
    return AttentionRoles(keys, depth, row_names, head, sequences.name, more.over if more else "")


def _keys(node: Node, body: Graph) -> str:
    """Return the dim of the loop, which must be the one that blocks split."""
    assert body.space is not None
    loop = body.space.loop
    if loop is None:
        raise PlanError(f"{node.name} has no loop over keys")
    split = [axis.dim for axis in body.space.reduced]
    if split != [loop.dim]:
        words = f"split {', '.join(split)}" if split else "split nothing"
        raise PlanError(f"{node.name}: its blocks {words}, this plan splits {loop.dim}")
    return loop.dim


def _lines(scores: Node, body: Graph, keys: str) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Return the dims, in storage order, of the inputs that the scores' operands are made of."""
    of_keys, of_queries = sorted(scores.args, key=lambda a: keys not in body.values[a].type.names)
    return _widest(of_keys, body), _widest(of_queries, body)


def _widest(name: str, body: Graph) -> tuple[Dim, ...]:
    inputs = [n.out.type.dims for n in sources(name, body) if n.op == "input"]
    return max(inputs, key=len, default=())


def sources(name: str, body: Graph) -> Iterator[Node]:
    """Yield what a value is made of elementwise; a sum or a product is a source of its own."""
    node = body.producers[name]
    if OPS[node.op].kind is not Kind.ELEMENTWISE:
        yield node
        return
    for arg in node.args:
        yield from sources(arg, body)
