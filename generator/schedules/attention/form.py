"""What makes a muGraph attention: the roles of its dims, and the nodes that it has exactly one of.

Lines of a cache may be keys and values alike, with more of the keys beside them (latent attention).
Scores are the sum of two products then: of queries with the lines whose values are summed, and of
what else queries have with the rest of the keys, along a dim of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import OPS, Dim, DType, Graph, Kind, Node, Phase, phases_of
from mirage_kernels.generator.schedules.attention.program import AttentionRoles, Carried, Held


@dataclass(frozen=True)
class ScoreProduct:
    """A product of keys and queries, and its two operands."""

    node: Node
    keys: str
    queries: str  # the same for all steps of a work item


@dataclass(frozen=True)
class Form:
    """The nodes that make a block graph attention, and the values they meet in."""

    roles: AttentionRoles
    scores: ScoreProduct
    more: ScoreProduct | None  # along a dim that the values lack
    peak: Node
    sum: Carried
    product: Carried
    values: str  # the product's side that is read as it is
    weights: str  # its other side
    carries: frozenset[str]  # all values that leave the loop, or the blocks


def form_of(node: Node, body: Graph) -> Form:
    """Return the form of one kernel; `body` is its graph without thread graphs.

    Raises PlanError where there is none or several of what this plan has one of, and where dims
    have other roles than the plan knows.
    """
    keys = _keys(node, body)
    products = _score_products(body, keys)
    return _Reader(body, _roles(body, keys, products)).form(products)


# -- the roles of dims -----------------------------------------------------------------------------


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
    if len(found) != 1 and not latent:
        raise PlanError(
            f"this plan has one product of keys and queries, the muGraph {_named(found)}"
        )
    return found


def _roles(body: Graph, keys: str, products: list[Node]) -> AttentionRoles:
    """Return the roles of the dims, which follow from how keys and queries are stored.

    Keys are stored by sequence, position, perhaps head, and depth, which is what their product
    contracts; queries by sequence, perhaps token, head, head of the group, and depth.
    """
    scores, *more = products
    sides = sorted(scores.args, key=lambda a: keys not in body.values[a].type.names)
    of_keys, of_queries = (_stored(side, body) for side in sides)
    depth = scores.over
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
    return AttentionRoles(
        keys=keys,
        depth=depth,
        rows=tuple(d.name for d in rows),
        heads=heads[0].name if heads else "",
        sequences=sequences.name,
        more=more[0].over if more else "",
    )


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


def _named(nodes: list[Node]) -> str:
    return " and ".join(n.name for n in nodes) or "none"


# -- the nodes -------------------------------------------------------------------------------------


class _Reader:
    """A block graph that is looked at, with the roles of its dims."""

    def __init__(self, body: Graph, roles: AttentionRoles) -> None:
        self.body, self.roles, self.phases = body, roles, phases_of(body)

    def form(self, products: list[Node]) -> Form:
        peak = self.only("peak", "running peak")
        summed = self.only("sum", "sum over keys")
        product = self.only("contract", "product over keys")
        values, weights = self.operands_of_product(product, products)
        scores, *more = [self.score_product(node) for node in products]
        for looker in (peak, summed):
            (name,) = looker.args
            if self.held(name) is not Held.SCORES:
                raise PlanError(f"{looker.name} looks along keys of {name}, which are no scores")
        sums = [self.carried(node, peak) for node in (summed, product)]
        last = [n.name for n in self.body.of("last") if n.args == (peak.name,)]
        return Form(
            roles=self.roles,
            scores=scores,
            more=more[0] if more else None,
            peak=peak,
            sum=sums[0],
            product=sums[1],
            values=values,
            weights=weights,
            carries=frozenset((*last, *(name for c in sums for name in (c.total, c.whole)))),
        )

    def held(self, name: str) -> Held | None:
        return self.roles.held(self.body.values[name].type)

    def only(self, op: str, words: str) -> Node:
        """Return the one node with an op along the keys."""
        found = [n for n in self.body.of(op) if n.over == self.roles.keys]
        if len(found) != 1:
            raise PlanError(f"this plan has one {words}, the muGraph {_named(found)}")
        if self.phases[found[0].name] is not Phase.LOOP:
            raise PlanError(f"{found[0].name} is no value of the loop")
        return found[0]

    def operands(self, node: Node, other: Held) -> tuple[str, str] | None:
        """Return the operand that is keys, then the other; None where they are something else."""
        keys, others = sorted(node.args, key=lambda a: self.held(a) is not Held.KEYS)
        return (
            (keys, others) if [self.held(keys), self.held(others)] == [Held.KEYS, other] else None
        )

    def operands_of_product(self, node: Node, products: list[Node]) -> tuple[str, str]:
        """Return the values and their weights.

        Values are an input that is used for nothing else; of latents, the keys as they are.
        """
        if (operands := self.operands(node, Held.SCORES)) is None:
            raise PlanError(f"{node.name} is no product of values and weights")
        values, weights = operands
        made = self.body.producers[values]
        lookers = [node, products[0]] if len(products) > 1 else [node]
        others = [n.name for n in self.body.users(values) if n not in lookers]
        if made.op != "input" or made.loop_cut != self.roles.keys or others:
            words = f"used by {others[0]}" if others else "computed"
            raise PlanError(f"{values}, which {node.name} multiplies, is {words}")
        self.require_storage(weights, node)
        return values, weights

    def score_product(self, node: Node) -> ScoreProduct:
        """Return a product of keys and queries; the queries' side must not change in the loop."""
        if self.phases[node.name] is not Phase.LOOP:
            raise PlanError(f"{node.name}, the product with queries, is not in the loop")
        if (operands := self.operands(node, Held.QUERIES)) is None:
            raise PlanError(f"{node.name} is no product of keys and queries")
        keys, queries = operands
        if self.phases[queries] is not Phase.BEFORE:
            raise PlanError(f"{queries}, the queries' side of {node.name}, changes in the loop")
        for operand in operands:
            self.require_storage(operand, node)
        return ScoreProduct(node, keys, queries)

    def require_storage(self, name: str, node: Node) -> None:
        if self.body.values[name].type.dtype not in (DType.FP16, DType.BF16):
            raise PlanError(f"{node.name} multiplies {name} {self.body.values[name].type}")

    def carried(self, node: Node, peak: Node) -> Carried:
        """Return how a sum leaves the loop and the blocks: rescaled by the peak both times."""
        total = self.only_user(node, "accum_rescaled")
        if total.args[1] != peak.name:
            raise PlanError(f"{total.name} is rescaled by {total.args[1]}, not {peak.name}")
        whole = self.only_user(total, "combine_rescaled")
        last = self.body.producers[whole.args[1]]
        if last.op != "last" or last.args != (peak.name,) or whole.over != self.roles.keys:
            raise PlanError(f"{whole.name} combines by {last.name}, no peak of the same loop")
        return Carried(node.name, total.name, whole.name, node.out.type)

    def only_user(self, node: Node, op: str) -> Node:
        users = self.body.users(node.name)
        if [u.op for u in users] != [op] or users[0].args[0] != node.name:
            found = ", ".join(f"{u.name} = {u.op}" for u in users) or "nothing"
            raise PlanError(f"{node.name} is carried by {op} only in this plan, not by {found}")
        return users[0]
