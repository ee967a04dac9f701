"""Which nodes of a function become one kernel.

A product starts a kernel; elementwise functions of its result join it, and so does what is computed
in front of it for it alone. What sums rows of a product's result starts the next kernel. Two
products of one tensor whose results meet are one kernel, as a gated MLP's, and so is attention:
two products with a softmax between them over the dim that the second contracts. A product of many
rows on both sides is PyTorch's, which is faster there. Views go where they are looked at from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod

from mirage_kernels.generator.frontend.editing import CASTS, is_view, mutates
from mirage_kernels.generator.frontend.export import operator_of, rounds
from mirage_kernels.generator.frontend.steps import MOST_CENTRED
from mirage_kernels.generator.partition.attention import attention_of
from mirage_kernels.generator.partition.pieces import is_join, is_turned, shape_of
from mirage_kernels.generator.partition.products import (
    ATTENTION,
    MOST_NODES,
    factors,
    free_extents,
    is_quantized,
    is_rounded,
    may_be_general,
    numbers_rows,
)
from mirage_kernels.generator.partition.reductions import CENTRED, first_of, may_sum, reduces
from mirage_kernels.generator.partition.rewriting import PRODUCTS
from mirage_kernels.generator.partition.siblings import MOST, alike
from mirage_kernels.generator.partition.trace import Node, Trace, base_of, memory_of

FEW = 64  # rows up to which kernels multiply at the speed of memory
MOST_FUNCTIONS = 24  # of a kernel without products
LOW_RANK = 128  # columns of a product that the next one may take in the same kernel
MOST_REDUCTIONS = 3  # of a kernel: what a search finds in seconds
MOST_IN_FRONT = 3  # sums in front of products times those: their terms multiply
SAME = CASTS | frozenset(("contiguous", "clone", "type_as", "lift_fresh_copy", "dropout"))


class Kind(Enum):
    """What a kernel is made of."""

    CALL = "PyTorch's own"
    CHAIN = "elementwise functions and reductions"
    PRODUCT = "a product and what goes with it"
    ATTENTION = "attention"


@dataclass
class Group:
    """Nodes of one kernel, in order, or a single one that PyTorch runs."""

    kind: Kind
    region: int = 0  # between operators that write over their operands
    nodes: list[Node] = field(default_factory=list)
    siblings: bool = False  # its products are of one tensor, and each has a result

    @property
    def products(self) -> list[Node]:
        """Its products."""
        return [n for n in self.nodes if operator_of(n) in PRODUCTS]

    @property
    def reductions(self) -> int:
        """How many of its nodes sum up."""
        return sum(map(reduces, self.nodes))


def ordered(grouping: Grouping) -> list[Group]:
    """Return groups so that each comes behind what it takes."""
    done: list[Group] = []

    def visit(group: Group) -> None:
        if group not in done:
            for needed in grouping.needs(group):
                visit(needed)
            done.append(group)

    for group in sorted(grouping.groups, key=lambda g: g.region):
        visit(group)
    return done


@dataclass(frozen=True)
class Cuts:
    """Where a function is cut because no kernel could be made otherwise."""

    bare: set[Node] = field(default_factory=set)  # products that nothing goes in front of
    alone: set[Node] = field(default_factory=set)  # products that nothing joins
    first: set[Node] = field(default_factory=set)  # what starts a kernel
    last: set[Node] = field(default_factory=set)  # what ends one
    calls: set[Node] = field(default_factory=set)  # PyTorch's, besides those that have no form
    parted: set[Node] = field(default_factory=set)  # cats whose pieces are of several kernels
    apart: set[Node] = field(default_factory=set)  # sums that are no second result of a kernel
    rows: set[Node] = field(default_factory=set)  # reads and writes by an index that are PyTorch's
    unjoined: set[Node] = field(default_factory=set)  # results with launches of their own


class Grouping:
    """Groups of a trace's nodes.

    `few` says of a product whether kernels multiply it; `cuts` has what to cut otherwise than where
    it would be.
    """

    def __init__(
        self,
        trace: Trace,
        few: Callable[[Node], bool],
        cuts: Cuts | None = None,
    ) -> None:
        cuts = cuts or Cuts()
        self.trace, self.few, self.alone, self.first = trace, few, cuts.alone, cuts.first
        self.rows, self.bare = cuts.rows, cuts.alone | cuts.bare
        self.unjoined, self.last = cuts.unjoined, cuts.last
        self.calls = {*cuts.calls, *trace.refused}
        self.groups: list[Group] = []
        self.of: dict[Node, Group] = {}
        self.attention = attention_of(self)
        region = 0
        for node in trace.nodes:
            if trace.is_free(node) and node not in self.calls:
                continue
            self._place(node, region)
            region += mutates(node) and node in trace.refused
        self._merge_chains([g for g in self.groups if self._is_of_weights(g)], self.alone)
        self._merge_siblings()
        self._merge_chains(self.groups, self.bare | self._quantized())
        self._merge_pieces(cuts.parted)
        self._merge_sums(cuts.apart)
        for group in [g for g in self.groups if all(operator_of(n) in SAME for n in g.nodes)]:
            group.kind, (_, *more) = Kind.CALL, group.nodes  # no kernel only casts or copies
            del group.nodes[1:]
            for node in more:
                self._add(node, Group(Kind.CALL, group.region))

    # -- forming -----------------------------------------------------------------------------------

    def _place(self, node: Node, region: int) -> None:
        op = operator_of(node)
        if node in self.calls or not self._multiplied(node):
            self._add(node, Group(Kind.CALL, region))
        elif node in self.attention:
            first = next((n for n in self.attention[node] if n in self.of), None)
            self._add(node, self.of[first] if first else Group(Kind.ATTENTION, region))
        elif op == ATTENTION:
            self._add(node, Group(Kind.ATTENTION, region))
        elif op in PRODUCTS:
            low = [g for g in self._sources(node) if self._low_rank(g) and g.region == region]
            joined = low and node not in self.alone and self._joins(node, low[-1])
            self._add(node, low[-1] if joined else Group(Kind.PRODUCT, region))
        else:
            kinds = (Kind.CHAIN,) if reduces(node) else (*Kind,)[1:]
            self._join(node, [g for g in self._sources(node) if g.kind in kinds], region)

    def _join(self, node: Node, among: list[Group], region: int) -> None:
        """Put an elementwise function or reduction into the last group that may take it."""
        order = {id(g): (g.kind is not Kind.CHAIN, i) for i, g in enumerate(self.groups)}
        among = [] if node in self.first else among
        fitting = [g for g in among if g.region == region and self._room(g, [node])]
        fitting = [g for g in fitting if not {*g.nodes} & {*self.alone, *self.last}]
        fitting = [g for g in fitting if not self._is_summed_beside(node, g)]
        for group in sorted(fitting, key=lambda g: order[id(g)], reverse=True):
            if self._joins(node, group) and not self._ended(node, group):
                self._add(node, group)
                for other in fitting:
                    if other is not group and self._unites(group, other):
                        self._merge(other, group)
                return
        copies = operator_of(node) in SAME - CASTS
        self._add(node, Group(Kind.CALL if copies else Kind.CHAIN, region))

    def _is_summed_beside(self, node: Node, product: Group) -> bool:
        """Say whether a function of what a product stores for others goes into sums alone.

        As the square of a norm's values does: sums are another kernel's, which computes it.
        """
        taken = [self.seen(a) for a in node.all_input_nodes]
        own = [a for a in taken if self.of.get(a) is product and product.kind is Kind.PRODUCT]
        shared = any(len({*self.users(a)}) > 1 for a in own)
        users = [*self.users(node)]
        summed = bool(users) and all(map(reduces, users))
        return shared and summed and node not in map(self.seen, self.trace.results)

    def _ended(self, node: Node, group: Group) -> bool:
        """Say whether a group stores what a node takes of it, and takes it from there."""
        own = [a for a in node.all_input_nodes if self.of.get(self.seen(a)) is group]
        chain = group.kind is Kind.CHAIN
        if any(rounds(self.seen(a)) for a in own) or (rounds(node) and not chain):
            return True
        if chain and not group.reductions:
            return False
        turned = chain and any(is_turned(a, node) for a in own)
        kept = (a for a in own if self._stored(self.seen(a)))
        return turned or not (is_rounded(node) or all(numbers_rows(a, node) for a in kept))

    def _stored(self, node: Node) -> bool:
        """Say whether the function returns a value, or PyTorch takes it."""
        if node in map(self.seen, self.trace.results):
            return True
        return any(u in self.calls or not self._multiplied(u) for u in self.users(node))

    def _add(self, node: Node, group: Group) -> None:
        if group not in self.groups:
            self.groups.append(group)
        group.nodes.append(node)
        self.of[node] = group

    def _multiplied(self, node: Node) -> bool:
        return operator_of(node) not in (*PRODUCTS, ATTENTION) or self.few(node)

    def _room(self, group: Group, more: Sequence[Node]) -> bool:
        nodes = [*group.nodes, *more]
        sums = group.reductions + sum(map(reduces, more))
        most = MOST_FUNCTIONS if group.kind is Kind.CHAIN else MOST_NODES
        return len(nodes) <= most and sums <= MOST_REDUCTIONS and may_sum(nodes)

    def _low_rank(self, group: Group) -> bool:
        columns = [min(free_extents(n)) for n in group.products]
        return (
            group.kind is Kind.PRODUCT
            and len(group.nodes) == 1
            and columns[0] <= LOW_RANK
            and (int(group.nodes[0].meta["val"].shape[-1]) <= LOW_RANK)
        )

    def _unites(self, a: Group, b: Group) -> bool:
        """Say whether two groups are chains, or products of one tensor."""
        if {*a.nodes, *b.nodes} & (self.first | self.last):
            return False
        if a.kind is b.kind is Kind.CHAIN:
            return self._room(a, b.nodes) and self._acyclic(a, b)
        shared = {*map(self.seen, (f for n in a.products for f in factors(n)))}
        shared &= {*map(self.seen, (f for n in b.products for f in factors(n)))}
        both = (
            a.kind is b.kind is Kind.PRODUCT
            and bool(shared)
            and not {*a.nodes, *b.nodes} & {*self.alone}
        )
        return both and self._room(a, b.nodes) and self._acyclic(a, b)

    def _merge(self, group: Group, into: Group) -> None:
        place = {n: i for i, n in enumerate(self.trace.nodes)}
        into.nodes = sorted([*group.nodes, *into.nodes], key=place.__getitem__)
        self.of |= dict.fromkeys(group.nodes, into)
        self.groups.remove(group)

    def _merge_siblings(self) -> None:
        """Multiply one tensor by several weights in one kernel.

        What nothing writes over may be multiplied sooner, in front of what writes something else.
        """
        found, single = dict[object, list[Group]](), {*self.alone, *self.unjoined}
        for group in self.groups:
            same = alike(group.nodes, self.trace.inputs) if group.kind is Kind.PRODUCT else None
            if same is not None and not {*group.nodes} & single:
                given = {a for n in group.nodes for a in n.all_input_nodes} - {*group.nodes}
                taken = {memory_of(self.trace, a) for a in given}
                region = group.region if taken & self.trace.written else 0
                found.setdefault((region, same), []).append(group)
        for first, *others in found.values():
            for group in others[: MOST - 1]:
                self._merge(group, first)
                first.siblings = True

    def _is_of_weights(self, group: Group) -> bool:
        """Say whether all that a group takes are inputs of static extents: it has no rows."""
        given = {a for n in group.nodes for a in n.all_input_nodes} - {*group.nodes}
        taken = {base_of(self.trace, n) for n in map(self.seen, given) if n not in group.nodes}
        static = (isinstance(s, int) for n in taken for s in self.trace.shape(n))
        return taken <= self.trace.inputs.keys() and all(static)

    def _quantized(self) -> set[Node]:
        """Return the products with weights of 8 bits, which no norm goes in front of.

        With norms inside two of its kernels, those of a layer took 73 us instead of 65 with 64
        rows, as long as without them with 8 (int8, Llama-3.1-8B, H200).
        """
        trace = self.trace
        products = (n for g in self.groups if g.kind is Kind.PRODUCT for n in g.products)
        return {n for n in products if any(is_quantized(trace, f, trace.nodes) for f in factors(n))}

    def _merge_chains(self, groups: Sequence[Group], bare: set[Node]) -> None:
        """Put what is computed for one product alone in front of it, in its kernel.

        Nothing goes in front of those that are `bare`.
        """
        for group in [g for g in groups if g.kind is Kind.CHAIN][::-1]:
            if {*group.nodes} & self.last:
                continue
            users = {id(self.of.get(u)): self.of.get(u) for n in group.nodes for u in self.users(n)}
            users.pop(id(group), None)
            into = next(iter(users.values()), None)
            if len(users) != 1 or into is None or into.region != group.region:
                continue
            most = {Kind.PRODUCT: 1, Kind.ATTENTION: 0}.get(into.kind, -1)
            free = not ({*into.nodes} & bare or any(map(rounds, group.nodes)))
            free &= not group.reductions or not self._result(group)
            sums = sum(reduces(n) + (operator_of(n) in CENTRED) for n in group.nodes)
            products = 1 if into.siblings else len(into.products)
            free &= sums * products <= MOST_IN_FRONT
            free &= may_be_general([*group.nodes, *into.nodes])
            if group.reductions <= most and free and self._room(into, group.nodes):
                self._merge(group, into)

    def _merge_pieces(self, parted: set[Node]) -> None:
        """Compute pieces that are alike, and joined to one tensor, in one kernel."""
        for cat in (n for n in self.trace.nodes if is_join(n) and n not in parted):
            for piece in cat.args[0][1:]:
                group, into = (self.of.get(self.seen(n)) for n in (piece, cat.args[0][0]))
                if group is None or into is None or group is into:
                    continue
                alike = shape_of(piece) == shape_of(cat.args[0][0])
                chains = group.kind is into.kind is Kind.CHAIN
                plain = not (group.reductions or into.reductions) and group.region == into.region
                if alike and chains and plain and self._unites(into, group):
                    self._merge(group, into)

    def _merge_sums(self, apart: set[Node]) -> None:
        """Sum what several read of one tensor, where results are as long, in one kernel."""
        sums = [g for g in self.groups if g.kind is Kind.CHAIN and g.reductions]
        sums = [g for g in sums if not {*g.nodes} & apart]
        for i, group in enumerate(sums):
            for into in sums[:i]:
                there = group in self.groups and into in self.groups
                if there and self._reads_alike(group, into) and self._unites(into, group):
                    self._merge(group, into)

    def _reads_alike(self, a: Group, b: Group) -> bool:
        """Say whether two groups sum rows of one tensor, none longer than a block holds."""
        stored = (n for g in (a, b) for n in g.nodes if self.used_outside(n, g))
        made = {tuple(map(int, first_of(n).shape)) for n in stored}
        taken = [{self.seen(x) for n in g.nodes for x in n.all_input_nodes} for g in (a, b)]
        rows = [int(first_of(n).numel()) for n in taken[0] & taken[1]]
        if a.region != b.region or len(made) != 1 or not rows:
            return False
        return 1 < max(rows) // max(1, prod(*made)) <= MOST_CENTRED

    def _result(self, group: Group) -> bool:
        return bool({*map(self.seen, self.trace.results)} & {*group.nodes})

    def used_outside(self, node: Node, group: Group) -> bool:
        """Say whether the function returns a value of a group, or another group takes it."""
        if node in map(self.seen, self.trace.results):
            return True
        return any(self.of[u] is not group for u in self.users(node))

    # -- what depends on what ----------------------------------------------------------------------

    def seen(self, node: Node) -> Node:
        """Return what a view looks at."""
        while node in self.trace.pairs and node.op == "call_function" and self._looks(node):
            node = node.all_input_nodes[0]
        return node

    def _looks(self, node: Node) -> bool:
        """Say whether a node is a view, or a cast that those repeat who take it."""
        return node not in self.calls and (is_view(node) or node in self.trace.widened)

    def _sources(self, node: Node) -> list[Group]:
        taken = (n for a in node.all_input_nodes for n in self.trace.made_from(self.seen(a)))
        found = [self.of.get(self.seen(n)) for n in taken]
        return [g for i, g in enumerate(found) if g is not None and g not in found[:i]]

    def users(self, node: Node) -> Iterator[Node]:
        """Yield what takes a value, or views of it."""
        for user in self.trace.users(node):
            if self._looks(user):
                yield from self.users(user)
            else:
                yield user

    def needs(self, group: Group) -> list[Group]:
        """Return the groups that make what a group takes."""
        return [g for n in group.nodes for g in self._sources(n) if g is not group]

    def _reaches(self, start: Sequence[Group], end: Group) -> bool:
        seen, left = [], list(start)
        while left:
            group = left.pop()
            if group is end:
                return True
            if group not in seen:
                seen.append(group)
                left += self.needs(group)
        return False

    def _joins(self, node: Node, group: Group) -> bool:
        """Say whether nothing that a node takes is made from what its group makes."""
        others = [g for g in self._sources(node) if g is not group]
        return not self._reaches(others, group)

    def _acyclic(self, a: Group, b: Group) -> bool:
        outer = [g for g in (*self.needs(a), *self.needs(b)) if g is not a and g is not b]
        return not self._reaches(outer, a) and not self._reaches(outer, b)
