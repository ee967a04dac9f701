"""A group of nodes as a recipe and as a step of its program's document."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.frontend.from_torch import (
    ROWS,
    Portion,
    TracedFunction,
    portions_recipe,
)
from mirage_kernels.generator.frontend.positional.lower import Layout, sizes_of
from mirage_kernels.generator.partition.groups import Group, Grouping, Kind, ordered, reduces
from mirage_kernels.generator.partition.places import Flow, Place, join_step, places_of, views_first
from mirage_kernels.generator.partition.trace import Node, Size, Trace, base_of, is_view
from mirage_kernels.generator.partition.views import Own, in_its_order, looked_at, strides_of
from mirage_kernels.generator.recipe import Recipe
from mirage_kernels.program_steps import call

if TYPE_CHECKING:
    import torch

Step = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Nodes of a kernel, with the views it looks through; what it takes and what it gives."""

    trace: Trace
    kind: Kind
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    results: tuple[Node, ...]
    places: Mapping[Node, Place] = field(default_factory=dict)  # of results, or what a cat joins

    @property
    def key(self) -> frozenset[Node]:
        """What its kernel depends on: its nodes, and what its results are parts of."""
        return frozenset((*self.nodes, *(p.whole for p in self.places.values())))

    @property
    def computing(self) -> list[Node]:
        """The nodes that are no views or constants."""
        return [n for n in self.nodes if not self.trace.is_free(n)]

    @property
    def runs(self) -> bool:
        """Say whether it is more than views, and no copy of what kernels write there."""
        written = self.kind is Kind.CALL and self.places
        return bool(self.computing) and not (written and not self.called()["copies"])

    @property
    def name(self) -> str:
        """Its first and its last operator."""
        ops = [operator_of(n).strip("_") for n in self.computing]
        return "_".join(dict.fromkeys((ops[0], ops[-1])))

    def recipe(self, name: str) -> Recipe:
        """Return its recipe; raises RecipeError for what kernels cannot be made of."""
        names = {n: self.trace.name(n) for n in self.inputs}
        dynamic: dict[str, dict[int, str]] = {}
        rows: dict[str, int] = {}
        for node, own in names.items():
            for at, size in enumerate(self.trace.shape(node)):
                if isinstance(size, dict):
                    dim = _dim(size)
                    dynamic.setdefault(own, {})[at] = dim
                    rows[dim] = ROWS * int(size["times"])
        both: list[Callable[[Node], Node]] = [lambda n: n, self.trace.pairs.__getitem__]
        portions = [
            Portion(
                name,
                [*map(own, self.nodes)],
                {own(n): text for n, text in names.items()},
                [*map(own, self.results)],
                self.trace.where,
                {own(n): shape for n in self.inputs if (shape := self.stored(n, own))},
                {own(n): strides for n, strides in self.strides(own)},
            )
            for own in both[: 1 + bool(dynamic)]
        ]
        return portions_recipe(name, self.reference(), portions, dynamic, rows=rows, is_part=True)

    def stored(self, node: Node, own: Callable[[Node], Node]) -> tuple[int, ...]:
        """Return the extents of an input that lies side by side: one that a kernel stored.

        A single element is as many as the values that it goes to have in their last dim, for the
        device reads it: other numbers of kernels come from the host.
        """
        if not self.is_one(node):
            shape = own(node).meta["val"].shape
            apart = node in self.trace.inputs or self.is_seen(node)
            return () if apart else tuple(map(int, shape)) or (1,)
        last = {int(u.meta["val"].shape[-1]) for u in self.trace.users(node) if u in self.nodes}
        if len(last) != 1 or any(reduces(u) or is_view(u) for u in self.trace.users(node)):
            raise RecipeError(f"{self.trace.name(node)} has one element, and no one width")
        return (*last,)

    def strides(self, own: Own) -> Iterator[tuple[Node, tuple[int, ...]]]:
        """Yield inputs that PyTorch looks at, and results that have a place, with their strides."""
        yield from ((n, strides_of(self.trace, n, own)) for n in self.inputs if self.is_seen(n))
        yield from ((n, place.strides(self.trace, n, own)) for n, place in self.places.items())

    def is_seen(self, node: Node) -> bool:
        """Say whether an input is a view that PyTorch makes."""
        return base_of(self.trace, node) is not node and not self.is_one(node)

    def is_one(self, node: Node) -> bool:
        """Say whether an input has one element, whatever the dynamic extents."""
        return self.trace.shape(node) in ([], [1])

    def reference(self) -> Callable[..., Any]:
        """Return the function of its nodes: PyTorch's operators in order."""
        steps = [self.trace.call(n) for n in self.nodes]
        shapes = {self.trace.name(n): self.trace.shape(n) for n in self.inputs}
        results = [self.trace.name(n) for n in self.results]

        def reference(**given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            sizes = (
                (s, n) for k, x in given.items() for s, n in zip(shapes[k], x.shape, strict=True)
            )
            extents = {s["extent"]: n // s["times"] for s, n in sizes if isinstance(s, dict)}
            values: dict[str, Any] = dict(given)
            for step in steps:
                call(step, values, extents)
            return tuple(values[r] for r in results)

        ops = ", ".join(operator_of(n).strip("_") for n in self.computing)
        reference.__doc__ = f"{ops} of {self.trace.function.named}"
        return reference

    def called(self) -> Step:
        """Return how a program runs its node by PyTorch."""
        (node,) = self.nodes
        if self.places:
            return join_step(self.trace, node, self.places)
        return self.trace.call(node)

    def step(self, recipe: Recipe, symbol: str) -> Step:
        """Return how a program runs its kernel."""
        function = recipe.reference
        assert isinstance(function, TracedFunction)
        by_name = {self.trace.name(n): n for n in self.inputs}
        sizes, orders = sizes_of(function.traced.graph), function.orders
        return {
            "kernel": symbol,
            "inputs": [
                {
                    "value": n,
                    "shape": [*_extents(layout, self.trace.shape(by_name[n]), sizes)],
                    "one": self.is_one(by_name[n]),
                }
                | ({} if [*orders[n]] == sorted(orders[n]) else {"order": [*orders[n]]})
                for n, layout in function.layouts.items()
            ],
            "results": [
                {
                    "value": self.trace.name(n),
                    "shape": self.trace.shape(n),
                    "dtype": dtype_name(n),
                }
                | self._into(n, layout, sizes)
                for n, layout in zip(self.results, function.traced.lowered.outputs, strict=True)
            ],
        }

    def _into(self, node: Node, layout: Layout, sizes: Mapping[str, int]) -> Step:
        """Return where a result goes that is a part of another tensor, and its kernel's extents."""
        if node not in self.places:
            return {}
        own = [*_extents(layout, self.trace.shape(node), sizes)]
        return {"into": self.places[node].data(self.trace) | {"as": own}}


def _dim(size: Mapping[str, Any]) -> str:
    """Return the name of a dim that is a multiple of a dynamic extent."""
    return size["extent"] if size["times"] == 1 else f"{size['extent']}_{size['times']}"


def _extents(
    layout: Sequence[Sequence[str]], shape: Sequence[Size], sizes: Mapping[str, int]
) -> Iterator[Size]:
    """Yield the extents of an input with the dims that its recipe gives it."""
    for row, size in zip(layout, shape or [1], strict=True):
        if isinstance(size, dict):
            yield size
        else:
            yield from (sizes[dim] for dim in row)


def dtype_name(node: Node) -> str:
    """Return the element type of a value, as torch names it."""
    return str(node.meta["val"].dtype).removeprefix("torch.")


def parts_of(grouping: Grouping) -> list[Part]:
    """Return a grouping's kernels and calls in order, with the views that calls and results need.

    A view of what kernels take is inside of them; PyTorch looks through the others, and gives
    products what lies in memory as it was stored.
    """
    trace, made, there = grouping.trace, list[Part](), set[Node](grouping.trace.inputs)

    def look(node: Node) -> None:
        if node not in there and trace.is_free(node) and node not in grouping.calls:
            for argument in node.all_input_nodes:
                look(argument)
            made.append(Part(trace, Kind.CALL, (node,), tuple(node.all_input_nodes), (node,)))
        there.add(node)

    for group in ordered(grouping):
        if group.kind is Kind.CALL:
            (node,) = group.nodes
            for argument in node.all_input_nodes:
                look(argument)
            made.append(Part(trace, Kind.CALL, (node,), tuple(node.all_input_nodes), (node,)))
        else:
            part = _kernel(grouping, group)
            for argument in part.inputs:
                look(argument)
            made.append(part)
            there.update(part.results)
        there.update(group.nodes)
    for result in trace.results:
        look(result)
    return [*_placed(trace, made)]


def _placed(trace: Trace, parts: Sequence[Part]) -> Iterator[Part]:
    """Yield parts; kernels write results where a cat joins them, or where they are copied to."""
    flows = [Flow(p.nodes, p.inputs, p.results, p.kind is Kind.CALL) for p in parts]
    places, first = places_of(trace, flows), dict[int, list[int]]()
    for view, kernel in views_first(trace, flows, places).items():
        first.setdefault(kernel, []).append(view)
    moved = {i for views in first.values() for i in views}
    order = (j for i in range(len(parts)) if i not in moved for j in (*first.get(i, ()), i))
    for part in (parts[i] for i in order):
        call = part.nodes[0] if part.kind is Kind.CALL else None
        own = {n: place for n, place in places.items() if n in part.results or place.call is call}
        yield replace(part, places=own)


def _kernel(grouping: Grouping, group: Group) -> Part:
    trace, own, inputs = grouping.trace, {*group.nodes}, dict[Node, None]()

    def visit(node: Node) -> None:
        for argument in node.all_input_nodes:
            if argument in own:
                continue
            viewed = argument not in trace.inputs and is_view(argument)
            viewed = viewed and (not _is_item(grouping, argument) or argument.args[0] in own)
            viewed = viewed and not (
                group.kind is Kind.PRODUCT and _is_reshape(grouping, argument, own)
            )
            if (viewed or argument in trace.constants) and argument not in grouping.calls:
                own.add(argument)
                visit(argument)
            else:
                inputs[argument] = None

    for node in group.nodes:
        visit(node)
    outside = [n for n in reversed(group.nodes) if grouping.used_outside(n, group)]  # last first
    results = [r for n in outside for r in (_items(grouping, n) or [n])]
    own.update(results)
    nodes = tuple(n for n in trace.nodes if n in own)
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
