"""Where a part is cut that no kernel can be made of: a rule after the other, until one applies.

A launch of several kernels is taken apart, and so are siblings. Pieces of one tensor and products
go alone, products first without what is in front of them, then without what is behind; the last sum
starts a kernel of its own.
What is left is cut in halves, and what cannot be is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from mirage_kernels.generator.frontend.editing import taken_by, upstream
from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.partition.groups import Cuts, Kind
from mirage_kernels.generator.partition.parts import Part
from mirage_kernels.generator.partition.pieces import is_elementwise
from mirage_kernels.generator.partition.products import ATTENTION, factors, products_of
from mirage_kernels.generator.partition.reductions import first_of, nested_exp, reduces
from mirage_kernels.generator.partition.rewriting import PRODUCTS
from mirage_kernels.generator.partition.trace import Node, base_of, memory_of
from mirage_kernels.generator.partition.twins import Use

_PRODUCTS = (*PRODUCTS, ATTENTION)
Cut = tuple[set[Node], Collection[Node]]  # those of a kind that there are, more of that kind


def cut_otherwise(part: Part, cuts: Cuts) -> None:
    """Note what to cut otherwise for a part without a kernel."""
    for known, more in _choices(part, cuts):
        if not known.issuperset(more):
            known.update(more)
            return
    cuts.calls.update(part.computing)


def _choices(part: Part, cuts: Cuts) -> Iterator[Cut]:
    products = products_of(part.nodes)
    if part.members or (part.siblings and part.computing[0] in products):
        yield cuts.unjoined, part.results
    yield cuts.rows, {x.node for x in part.indexed.values()}
    inner, outer = nested_exp(part.computing, partial(base_of, part.trace)) or (None, None)
    if inner is not None and _elements(inner) < _elements(outer):
        yield cuts.last, [inner]
    yield from _of_sums_and_pieces(part, cuts)
    if products and part.computing[0] not in products:
        yield cuts.bare, products
    if part.kind is Kind.PRODUCT and part.computing[-1] not in products:
        yield cuts.last, [*_final(products, {*part.nodes})]
    if products and len(part.computing) > 1:
        yield cuts.alone, products
    sums = [n for n in part.computing if part.kind is Kind.CHAIN and reduces(n)]
    yield cuts.first, [_start(part, n) for n in sums[-1:]] if len(sums) > 1 else ()
    yield cuts.first, [*_behind_results(part)][:1] if sums else ()
    yield cuts.first, [outer] if outer is not None else ()
    yield cuts.first, [n for n in map(partial(_start, part), sums[-1:]) if n != part.computing[0]]
    if part.kind is Kind.CHAIN and len(part.computing) > 1:
        yield cuts.first, [part.computing[len(part.computing) // 2]]


def _of_sums_and_pieces(part: Part, cuts: Cuts) -> Iterator[Cut]:
    """Yield pieces that one kernel would have joined, and sums that would be its second result."""
    joined = [place.whole for place in part.places.values()]
    yield cuts.parted, [cat for cat in joined if joined.count(cat) > 1]
    sums = [n for n in part.computing if part.kind is Kind.CHAIN and reduces(n)]
    if len(sums) > 1 and len(part.results) > 1 and not {*sums} & cuts.apart:
        yield cuts.apart, sums[-1:]


def _final(products: Sequence[Node], own: Collection[Node]) -> Iterator[Node]:
    """Yield the products that no other one takes."""
    for product in products:
        if not any(product in upstream(p, own) for p in products if p is not product):
            yield product


def _start(part: Part, node: Node) -> Node:
    """Return where to start a kernel that computes a node, so that least is stored in front of it.

    A sum of products of a state, say, takes the state that there is, and not the products.
    """
    while True:
        given = [n for n in node.all_input_nodes if n in part.computing and n not in part.results]
        alone = [n for n in given if len(n.users) == 1 and is_elementwise(n)]
        if len(given) != 1 or not alone:
            return node
        (before,) = alone
        needed = [n for n in before.all_input_nodes if base_of(part.trace, n) in part.computing]
        needed = [n for n in needed if base_of(part.trace, n) not in part.results]
        if sum(map(_elements, needed)) >= _elements(before):
            return node
        node = before


def _elements(node: Node) -> int:
    return int(first_of(node).numel())


def _behind_results(part: Part) -> Iterator[Node]:
    """Yield what takes another result of its own kernel."""
    for node in part.computing:
        taken = {base_of(part.trace, n) for n in node.all_input_nodes}
        if taken & {*part.results}:
            yield node


def uses_apart(part: Part) -> set[Use]:
    """Return the uses of a kernel's inputs that need a second name.

    The first product takes a tensor as it is, in one of its factors; so do products beside it in
    the same factor. Without products that is for the first use, and for those that look at it in
    the same way; and so it is of conditions, which compare documents of queries with those of keys.
    Other uses take the second one. What the function writes over has none.
    """
    using = [n for n in part.nodes if n in part.computing or len(n.all_input_nodes) > 1]
    uses = [(n, i, a) for n in using for i, a in enumerate(taken_by(n))]
    found = set[Use]()
    for tensor in (n for n in part.inputs if memory_of(part.trace, n) not in part.trace.written):
        mine = {(n, i): a for n, i, a in uses if _given(part, a) is tensor}
        kept = _used_as_it_is(part, mine)
        found |= {(n.name, i) for n, i in mine if (n, i) not in kept} if kept else set()
    return found


def _used_as_it_is(part: Part, uses: Mapping[tuple[Node, int], Node]) -> set[tuple[Node, int]]:
    """Return of the uses of one input those that keep its name."""
    own, products = {*part.nodes}, [n for n in part.nodes if operator_of(n) in _PRODUCTS]
    if not products or not any(n in part.computing for n, _ in uses):
        first = next(iter(uses.values()), None)
        return {use for use, operand in uses.items() if operand is first}
    for number in range(min(len(factors(p)) for p in products)):
        taken = [(p, factors(p)[number]) for p in products]
        beside = [(p, x) for p, x in taken if products[0] not in upstream(x, own)]
        front = set[Node]().union(*(upstream(x, own) for _, x in beside))
        kept = {(n, i) for n, i in uses if n in front}
        kept |= uses.keys() & {(p, taken_by(p).index(x)) for p, x in beside}
        if kept:
            return kept
    return set()


def _given(part: Part, node: Node) -> Node:
    """Return the input that a kernel's operand looks at, or the operand."""
    while node in part.nodes and node not in part.computing and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]  # of a view
    return node
