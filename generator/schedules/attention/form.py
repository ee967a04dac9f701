"""What an attention muGraph has exactly one of: scores, peak, sum, product, and their operands."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.ir import DType, Graph, Node, Phase, phases_of
from mirage_kernels.generator.schedules.attention.latent import score_products
from mirage_kernels.generator.schedules.attention.program import AttentionRoles, Carried, Held
from mirage_kernels.generator.schedules.attention.roles import attention_roles


@dataclass(frozen=True)
class Form:
    """The nodes that make a block graph attention, and the values they meet in."""

    roles: AttentionRoles
    scores: Node  # the product of keys and queries
    scored: str  # its side of the keys
    resident: str  # its side of the queries, the same for all steps of a work item
    more: Node | None  # the product along a dim that the values lack
    more_scored: str  # its sides
    more_resident: str
    peak: Node
    sum: Carried
    product: Carried
    values: str  # the product's side that is read as it is
    weights: str  # its other side
    carries: frozenset[str]  # all values that leave the loop, or the blocks


def form_of(node: Node, body: Graph) -> Form:
    """Return the form of one kernel; `body` is its graph without thread graphs.

    Raises PlanError where there is none or several of what this plan has one of.
    """
    return _Reader(node, body).form()


class _Reader:
    """A block graph that is looked at."""

    def __init__(self, node: Node, body: Graph) -> None:
        self.body, self.phases = body, phases_of(body)
        self.roles = attention_roles(node, body)
        self.scores, self.more = score_products(body, self.roles.keys)

    def form(self) -> Form:
        peak = self.only("peak", "running peak")
        summed, product = (
            self.only("sum", "sum over keys"),
            self.only("contract", "product over keys"),
        )
        values, weights = self.operands_of_product(product)
        scored, resident = self.operands_of_scores(self.scores)
        more_scored, more_resident = self.operands_of_scores(self.more) if self.more else ("", "")
        for name, looker in ((peak.args[0], peak), (summed.args[0], summed)):
            if self.held(name) is not Held.SCORES:
                raise PlanError(f"{looker.name} looks along keys of {name}, which are no scores")
        carried = [self.carried(n, peak) for n in (summed, product)]
        return Form(
            roles=self.roles,
            scores=self.scores,
            scored=scored,
            resident=resident,
            more=self.more,
            more_scored=more_scored,
            more_resident=more_resident,
            peak=peak,
            sum=carried[0],
            product=carried[1],
            values=values,
            weights=weights,
            carries=self.carries(peak, carried),
        )

    def held(self, name: str) -> Held | None:
        return self.roles.held(self.body.values[name].type)

    def only(self, op: str, words: str) -> Node:
        """Return the one node with an op along the keys."""
        found = [n for n in self.body.of(op) if n.over == self.roles.keys]
        if len(found) != 1:
            names = " and ".join(n.name for n in found) or "none"
            raise PlanError(f"this plan has one {words}, the muGraph {names}")
        if self.phases[found[0].name] is not Phase.LOOP:
            raise PlanError(f"{found[0].name} is no value of the loop")
        return found[0]

    def operands_of_product(self, node: Node) -> tuple[str, str]:
        """Return the values and their weights.

        They are an input that is used for nothing else, or the keys as they are.
        """
        values, weights = sorted(node.args, key=lambda a: self.held(a) is not Held.KEYS)
        if [self.held(values), self.held(weights)] != [Held.KEYS, Held.SCORES]:
            raise PlanError(f"{node.name} is no product of values and weights")
        made = self.body.producers[values]
        lookers = [node, self.scores] if self.more else [node]
        others = [n.name for n in self.body.users(values) if n not in lookers]
        if made.op != "input" or made.loop_cut != self.roles.keys or others:
            words = f"used by {others[0]}" if others else "computed"
            raise PlanError(f"{values}, which {node.name} multiplies, is {words}")
        self.require_storage(weights, node)
        return values, weights

    def operands_of_scores(self, node: Node) -> tuple[str, str]:
        """Return the keys' side, and the queries', which stays for all steps of a work item."""
        if self.phases[node.name] is not Phase.LOOP:
            raise PlanError(f"{node.name}, the product with queries, is not in the loop")
        scored, resident = sorted(node.args, key=lambda a: self.held(a) is not Held.KEYS)
        if [self.held(scored), self.held(resident)] != [Held.KEYS, Held.QUERIES]:
            raise PlanError(f"{node.name} is no product of keys and queries")
        if self.phases[resident] is not Phase.BEFORE:
            raise PlanError(f"{resident}, the queries' side of {node.name}, changes in the loop")
        for operand in (scored, resident):
            self.require_storage(operand, node)
        return scored, resident

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

    def carries(self, peak: Node, carried: list[Carried]) -> frozenset[str]:
        last = (n.name for n in self.body.of("last") if n.args == (peak.name,))
        return frozenset((*last, *(name for c in carried for name in (c.total, c.whole))))
