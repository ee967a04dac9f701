"""Put ops in the place of matches: nodes of the graph are replaced, all others stay as they are."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource

from mirage_kernels.matching.choose import Choice
from mirage_kernels.matching.match import Match, Rows
from mirage_kernels.matching.packing import Pack, packed

Weights = Mapping[fx.Node, Tensor]


def rewrite(module: fx.GraphModule, choice: Choice, weights: Weights) -> list[Pack]:
    """Replace what was chosen in a module's graph, and compile its code again.

    Returns the weights that were put together. Their parts are to be moved when all that compiles
    the graph is done: until then it holds the parameters to be where they were.
    """
    packs: list[Pack] = []
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    writer = _Writer(module, order)
    for number, group in enumerate(choice.packs):
        made = _packed(module, group, weights, number)
        writer.replace_group(group, {name: _name(name, number) for name in made})
        packs += made.values()
    for found in choice.single:
        writer.replace(found)
    left = set(module.graph.nodes)
    inner = {n for m in (*choice.single, *chain(*choice.packs)) for n in m.inner & left}
    for node in sorted(inner, key=order.__getitem__, reverse=True):
        if not node.users:
            module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    return packs


def _packed(
    module: fx.GraphModule, group: Sequence[Match], weights: Weights, number: int
) -> dict[str, Pack]:
    """Register a group's weights as one, by the name of the argument and the group's number."""
    packs = {}
    for argument in ("weight", "bias"):
        nodes = [m.tensors[argument].node for m in group if argument in m.tensors]
        if nodes:
            packs[argument] = packed([weights[node] for node in nodes])
            _register(module, _name(argument, number), packs[argument].whole)
    return packs


def _name(argument: str, number: int) -> str:
    return f"packed_{argument}_{number}"


def _register(module: fx.GraphModule, name: str, whole: Tensor) -> None:
    """Register a tensor where torch.compile's other backends know it as one that stays."""
    module.register_buffer(name, whole, persistent=False)
    sources = getattr(module, "_param_name_to_source", None)  # of a graph that dynamo made
    if sources is not None:
        sources[name] = ConstantSource(source_name=name)


class _Writer:
    """Writes calls into a graph; knows which nodes have been replaced by which."""

    def __init__(self, module: fx.GraphModule, order: Mapping[fx.Node, int]) -> None:
        self.graph, self.order = module.graph, order
        self.taken: dict[fx.Node, fx.Node] = {}

    def replace_group(self, group: Sequence[Match], whole: Mapping[str, str]) -> None:
        graph, first = self.graph, min(group, key=lambda m: self.order[m.root])
        with graph.inserting_before(first.root):
            given = {name: graph.get_attr(attribute) for name, attribute in whole.items()}
            made = self._call(first, given)
            start, parts = 0, []
            for found in group:
                rows = found.sizes["N"]
                parts.append(graph.call_function(torch.narrow, (made, -1, start, rows)))
                start += rows
        for found, part in zip(group, parts, strict=True):
            for user in found.root.users:
                # Rows of the part lie apart, and a view may want them side by side.
                if user.op == "call_method" and user.target == "view":
                    user.target = "reshape"
                elif user.target is torch.ops.aten.view.default:
                    user.target = torch.ops.aten.reshape.default
            self._take_over(found.root, part)

    def replace(self, found: Match) -> None:
        graph, anchor = self.graph, found.root
        if found.total is not None and self.order[found.total] < self.order[found.root]:
            anchor = found.total
        with graph.inserting_before(anchor):
            made = self._call(found, {})
            if found.total is None:
                self._take_over(found.root, made)
                return
            pair = [graph.call_function(operator.getitem, (made, place)) for place in (0, 1)]
        for old, new in zip((found.root, found.total), pair, strict=True):
            self._take_over(old, new)

    def _take_over(self, old: fx.Node, new: fx.Node) -> None:
        new.meta = dict(old.meta)
        old.replace_all_uses_with(new)
        self.graph.erase_node(old)
        self.taken[old] = new

    def _call(self, found: Match, given: Mapping[str, fx.Node]) -> fx.Node:
        op = found.pattern.op
        assert op is not None  # what has none is not chosen
        args: list[fx.node.Argument] = []
        for argument in (a for a in op._schema.arguments if not a.kwarg_only):
            name = argument.name
            if name in given:
                args.append(given[name])
            elif name in found.tensors:
                args.append(self._rows(found.tensors[name]))
            elif name in found.numbers:
                args.append(found.numbers[name])
            elif name == "activation":
                args.append(found.pattern.activation)
            else:
                args.append(argument.default_value)
        return self.graph.call_function(op, tuple(args))

    def _rows(self, rows: Rows) -> fx.Node:
        node = self.taken.get(rows.node, rows.node)
        if rows.end < 0:
            return node
        size = rows.end - rows.first
        return self.graph.call_function(torch.narrow, (node, 0, rows.first, size))
