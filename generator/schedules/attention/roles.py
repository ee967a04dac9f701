"""The roles of attention in a tile program: what statements join, which dim plays which part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from mirage_kernels.generator.ir import OPS, Dim, Graph, Kind
from mirage_kernels.generator.ir.ops import ACCUMS
from mirage_kernels.generator.schedules.attention.program import AttentionRoles, require
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import Contract, Reduce, Scale


@dataclass(frozen=True)
class Joined:
    """What a statement joins along a dim."""

    name: str  # the value, of one step in the loop
    op: str  # contract, by tensor cores; sum or max
    args: tuple[str, ...]
    over: str
    total: str  # what carries it through the loop; itself where nothing does
    factor: str  # by which that is rescaled; of a running maximum, what others are rescaled by


def joined_of(block: BlockProgram) -> dict[str, Joined]:
    """Return what a tile program joins along dims, by name."""
    statements = [*chain.from_iterable(block.statements.values())]
    scales = {s.fragment: s.factor for s in statements if isinstance(s, Scale)}
    found = [_joined(s, block, scales) for s in statements if isinstance(s, (Contract, Reduce))]
    return {s.name: s for s in found}


def _joined(s: Contract | Reduce, block: BlockProgram, scales: Mapping[str, str]) -> Joined:
    if isinstance(s, Contract):
        total, op, factor = s.fragment, "contract", scales.get(s.fragment, "")
        args = [s.a, s.b]
    else:
        total, op, factor = s.tile, s.op, (s.factor or s.rescale) * s.carried
        args = [s.value, s.other] if s.other else [s.value]
    node = block.node(total)
    name = node.args[0] if node.op in ACCUMS else total
    return Joined(name, op, tuple(args), s.over, total, factor)


def roles_of(
    block: BlockProgram, joined: Mapping[str, Joined]
) -> tuple[AttentionRoles, list[Joined]]:
    """Return the roles of dims, and the products of queries and keys.

    Roles follow from how keys and queries are stored: keys by sequence, position, perhaps head, and
    depth, which is what their product contracts; queries by sequence, perhaps token, head, head of
    the group, and depth. The dim of the loop must be the one that blocks split.
    """
    loop, split = block.space.loop, [axis.dim for axis in block.space.reduced]
    require(loop is not None, "there is no loop over keys")
    assert loop is not None
    keys, names = loop.dim, ", ".join(split) or "nothing"
    require(split == [keys], f"blocks split {names}, this plan splits {keys}")
    scores, *more = products = _score_products(block, joined, keys)
    sides = sorted(scores.args, key=lambda a: keys not in block.type(a).names)
    of_keys, of_queries = (_stored(side, block.body) for side in sides)
    depth, names = scores.over, ", ".join(d.name for d in of_keys)
    by_sequence = len(of_keys) in (3, 4) and (of_keys[1].name, of_keys[-1].name) == (keys, depth)
    require(by_sequence, f"keys are stored as [{names}], not by sequence, {keys}, head and {depth}")
    heads, rows = of_keys[2:-1], tuple(d for d in of_queries if d not in of_keys)
    names = ", ".join(d.name for d in of_queries)
    in_order = of_queries == (of_keys[0], *rows[:-1], *heads, *rows[-1:], of_keys[-1])
    sentence = f"queries are stored as [{names}], not by sequence, token, head and group"
    require(in_order and 1 <= len(rows) <= 2, sentence)
    for dim in (*of_keys[:-1], *rows):
        sentence = f"{dim.name} is static, this plan takes all dims but {depth} at run time"
        require(dim.dynamic, sentence, f'name it in the recipe: dynamic={{"{dim.name}": ...}}')
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


def _score_products(block: BlockProgram, joined: Mapping[str, Joined], keys: str) -> list[Joined]:
    """Return the product of keys and queries, then that of what else the keys have, if any.

    Either is of one operand along the keys and one that is not. Of two, the first one's keys are
    what the product over the keys sums, too.
    """
    products = [s for s in joined.values() if s.op == "contract"]
    summed = {a for s in products if s.over == keys for a in s.args}
    found = [s for s in products if sum(keys in block.type(a).names for a in s.args) == 1]
    found.sort(key=lambda s: not summed & {*s.args})
    latent = len(found) == 2 and summed & {*found[0].args} and found[0].over != found[1].over
    require_one([s.name for s in found[: 1 if latent else None]], "product of keys and queries")
    return found


def _stored(operand: str, body: Graph) -> tuple[Dim, ...]:
    """Return the dims of the widest input that a value is made of elementwise, as it is stored."""
    node = body.producers[operand]
    if OPS[node.op].kind is Kind.ELEMENTWISE:
        return max((_stored(a, body) for a in node.args), key=len)
    return node.out.type.dims if node.op == "input" else ()


def require_one(found: Sequence[str], words: str) -> None:
    names = " and ".join(found) or "none"
    require(len(found) == 1, f"this plan has one {words}, the muGraph {names}")
