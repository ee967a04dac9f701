"""The kernels and calls of a grouping in order, with the views that they need."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from mirage_kernels.generator.frontend.editing import is_view, upstream
from mirage_kernels.generator.partition.groups import Group, Grouping, Kind, ordered
from mirage_kernels.generator.partition.parts import Part
from mirage_kernels.generator.partition.pieces import is_join, join_of
from mirage_kernels.generator.partition.places import (
    gathers_of,
    passed_over,
    pieces,
    places_of,
    views_first,
)
from mirage_kernels.generator.partition.reductions import reduces
from mirage_kernels.generator.partition.siblings import with_siblings
from mirage_kernels.generator.partition.trace import Node, Trace, base_of
from mirage_kernels.generator.partition.views import in_its_order, looked_at


def parts_of(grouping: Grouping, copies: Mapping[Node, Node]) -> list[Part]:
    """Return a grouping's kernels and calls in order, with the views that calls and results need.

    A view of what kernels take is inside of them; PyTorch looks through the others, and gives
    products what lies in memory as it was stored. What the calls in `copies` write over something
    as it is, kernels copy there.
    """
    trace, made = grouping.trace, _Parts(grouping)
    for group in ordered(grouping):
        if group.kind is not Kind.CALL:
            part = _kernel(grouping, group)
            made.add(with_siblings(part) if group.siblings else part)
        else:
            (node,) = group.nodes
            made.call(node, copies.get(node))
        made.there.update(group.nodes)
    for result in trace.results:
        made.look(result)
    return [*_placed(trace, [*_folded(trace, made.parts, grouping.rows)], grouping.rows)]


class _Parts:
    """Parts in order, with the views in front that they need."""

    def __init__(self, grouping: Grouping) -> None:
        self.grouping, self.parts = grouping, list[Part]()
        self.there = set[Node](grouping.trace.inputs)

    def look(self, node: Node) -> None:
        """Let PyTorch make a view that is not there."""
        free = self.grouping.trace.is_free(node) and node not in self.grouping.calls
        if node not in self.there and free:
            for argument in node.all_input_nodes:
                self.look(argument)
            self._called(node)
        self.there.add(node)

    def add(self, part: Part) -> None:
        """Add a kernel."""
        for argument in part.inputs:
            self.look(argument)
        self.parts.append(part)
        self.there.update(part.results)

    def call(self, node: Node, copy: Node | None) -> None:
        """Add what PyTorch runs, behind the kernel that copies a value to where it goes, if any."""
        if copy is not None:
            self.add(_kernel(self.grouping, Group(Kind.CHAIN, nodes=[copy])))
        for argument in node.all_input_nodes:
            if copy is None or argument not in copy.all_input_nodes:
                self.look(argument)
        self._called(node)

    def _called(self, node: Node) -> None:
        given = tuple(node.all_input_nodes)
        self.parts.append(Part(self.grouping.trace, Kind.CALL, (node,), given, (node,)))


def _folded(trace: Trace, parts: Sequence[Part], apart: Collection[Node]) -> Iterator[Part]:
    """Yield parts; what an index reads for chains of kernels alone, they read themselves."""
    folded = gathers_of(trace, [p.flow for p in parts], apart)
    for part in parts:
        own = {n: folded[b] for n in part.inputs if (b := base_of(trace, n)) in folded}
        if part.kind is Kind.CALL:
            own = {n: folded[n] for n in part.nodes if n in folded}
        yield replace(part, gathers=own)


def _placed(trace: Trace, parts: Sequence[Part], apart: Collection[Node]) -> Iterator[Part]:
    """Yield parts; kernels write results where a cat joins them, or where they are copied to."""
    flows = [p.flow for p in parts]
    places, first = places_of(trace, flows, apart), dict[int, list[int]]()
    over, copies = passed_over(trace, places), {*trace.copies.values()}
    for view, kernel in views_first(trace, flows, places).items():
        first.setdefault(kernel, []).append(view)
    moved = {i for views in first.values() for i in views}
    order = (j for i in range(len(parts)) if i not in moved for j in (*first.get(i, ()), i))
    for part in (parts[i] for i in order if not {*parts[i].results} <= over):
        call = part.nodes[0] if part.kind is Kind.CALL else None
        own = {n: place for n, place in places.items() if n in part.results or place.call is call}
        written = call is not None and any(p.write or n in copies for n, p in own.items())
        inputs = tuple({p.whole for p in own.values()}) if written else part.inputs
        if call is not None and own and is_join(call):
            inputs = tuple(n for n, _ in pieces(trace, call))
        yield replace(part, places=own, inputs=inputs)


def _kernel(grouping: Grouping, group: Group) -> Part:
    trace, own, inputs = grouping.trace, {*group.nodes}, dict[Node, None]()

    def visit(node: Node) -> None:
        for argument in node.all_input_nodes:
            if argument in own:
                continue
            viewed = argument not in trace.inputs and is_view(argument)
            viewed = viewed and (not _is_item(grouping, argument) or argument.args[0] in own)
            viewed = viewed and not join_of(argument)  # what lies in turn is taken as one dim
            viewed = viewed and not (
                group.kind is Kind.PRODUCT and _is_reshape(grouping, argument, own)
            )
            if (viewed or argument in trace.repeated) and argument not in grouping.calls:
                own.add(argument)
                visit(argument)
            else:
                inputs[argument] = None

    for node in group.nodes:
        visit(node)
    copies = {*trace.copies.values()}
    outside = [  # last first
        n for n in reversed(group.nodes) if n in copies or grouping.used_outside(n, group)
    ]
    if group.kind is Kind.CHAIN:  # the search makes the first, and others in its loops and tiles
        outside.sort(key=lambda n: -sum(map(reduces, upstream(n, own) & {*group.nodes})))
    results = [r for n in outside for r in (_items(grouping, n) or [n])]
    own.update(results)
    nodes = tuple(n for n in (*trace.nodes, *trace.copies.values()) if n in own)
    return Part(trace, group.kind, nodes, tuple(inputs), tuple(results))


def _is_reshape(grouping: Grouping, node: Node, own: set[Node]) -> bool:
    """Say whether a view of a value that another kernel stores has its elements in their order."""
    stored = base_of(grouping.trace, node)
    if stored in own or stored in grouping.trace.inputs or stored.target is operator.getitem:
        return False
    return in_its_order(looked_at(grouping.trace, node, lambda n: n), stored)


def _is_item(grouping: Grouping, node: Node) -> bool:
    """Say whether a node is one of several values that another one computes."""
    return node.target is operator.getitem and node.args[0] in grouping.of


def _items(grouping: Grouping, node: Node) -> list[Node]:
    """Return the values of a node that has several, those that something takes."""
    return [u for u in grouping.trace.users(node) if _is_item(grouping, u)]
