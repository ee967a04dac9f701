"""Put ops in the place of matches: nodes of the graph are replaced, all others stay as they are."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import fx

from mirage_kernels.matching.choose import Choice
from mirage_kernels.matching.match import Match
from mirage_kernels.matching.packing import Whole, weight_nodes
from mirage_kernels.matching.strides import kept_apart
from mirage_kernels.matching.trace import Traced


def rewrite(module: fx.GraphModule, choice: Choice, traced: Traced) -> tuple[Whole, ...]:
    """Replace what was chosen in a module's graph, and compile its code again.

    Returns the weights that are one now: the argument that was the first part of each is the whole.
    """
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    places = {node: place for place, node in enumerate(inputs)}
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    apart = kept_apart(module, choice.packs, traced)
    writer = _Writer(module, order)
    for group in choice.packs:
        writer.replace_group(group, apart)
    for found in choice.single:
        writer.replace(found)
    left = set(module.graph.nodes)
    inner = {n for m in (*choice.single, *chain(*choice.packs)) for n in m.inner & left}
    for node in sorted(inner, key=order.__getitem__, reverse=True):
        if not node.users:
            module.graph.erase_node(node)
    wholes = dict.fromkeys(nodes for g in choice.packs for nodes in weight_nodes(g).values())
    for nodes in wholes:
        writer.widen(nodes, inputs[-1], traced)
    module.graph.lint()
    module.recompile()
    return tuple(Whole([places[node] for node in nodes]) for nodes in wholes)


class _Writer:
    """Writes calls into a graph; knows which nodes have been replaced by which."""

    def __init__(self, module: fx.GraphModule, order: Mapping[fx.Node, int]) -> None:
        self.graph, self.order = module.graph, order
        self.taken: dict[fx.Node, fx.Node] = {}
        self.packed: set[fx.Node] = set()  # calls that take wholes

    def replace_group(self, group: Sequence[Match], apart: frozenset[fx.Node]) -> None:
        """Call one op for a group; what is not in `apart` gets rows side by side."""
        graph, first = self.graph, min(group, key=lambda m: self.order[m.root])
        with graph.inserting_before(first.root):
            given = {name: nodes[0] for name, nodes in weight_nodes(group).items()}
            made = self._call(first, given)
            self.packed.add(made)
            start, parts = 0, []
            for found in group:
                rows = found.sizes["N"]
                part = graph.call_function(torch.narrow, (made, -1, start, rows))
                if found.root not in apart:
                    part = graph.call_method("contiguous", (part,))
                parts.append(part)
                start += rows
        for found, part in zip(group, parts, strict=True):
            self._take_over(found.root, part)

    def widen(self, nodes: Sequence[fx.Node], last_input: fx.Node, traced: Traced) -> None:
        """Let the first of these inputs be all of them; give its other readers what it was."""
        first, values = nodes[0], [traced.values[node] for node in nodes]
        readers = [user for user in first.users if user not in self.packed]
        if readers:
            with self.graph.inserting_after(last_input):
                part = self.graph.call_function(torch.narrow, (first, 0, 0, values[0].shape[0]))
            part.meta = dict(first.meta)
            for reader in readers:
                reader.replace_input_with(first, part)
        assert traced.mode is not None
        with traced.mode, torch.no_grad():
            first.meta["example_value"] = torch.cat(values)

    def replace(self, found: Match) -> None:
        graph, anchor = self.graph, found.root
        if found.total is not None and self.order[found.total] < self.order[found.root]:
            anchor = found.total
        with graph.inserting_before(anchor):
            made = self._call(found, {})
            if found.total is None:
                self._take_over(found.root, self._as_before(found, made))
                return
            pair = [graph.call_function(operator.getitem, (made, place)) for place in (0, 1)]
            pair = [self._as_before(found, one) for one in pair]
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
                args.append(self._read(found, name))
            elif name in found.numbers:
                args.append(found.numbers[name])
            elif name == "activation":
                args.append(found.pattern.activation)
            else:
                args.append(argument.default_value)
        return self.graph.call_function(op, tuple(args))

    def _read(self, found: Match, name: str) -> fx.Node:
        """Return what an op reads: rows of a weight, tokens in the order of the memory."""
        rows = found.tensors[name]
        node = self.taken.get(rows.node, rows.node)
        if found.pattern.is_by_token(name):
            return self._permuted(found, node, found.order)
        if rows.end < 0:
            return node
        size = rows.end - rows.first
        return self.graph.call_function(torch.narrow, (node, 0, rows.first, size))

    def _as_before(self, found: Match, made: fx.Node) -> fx.Node:
        """Return a result with the order of dims that its readers know."""
        back = [found.order.index(dim) for dim in range(len(found.order))]
        return self._permuted(found, made, back)

    def _permuted(self, found: Match, node: fx.Node, order: Sequence[int]) -> fx.Node:
        if found.is_contiguous:
            return node
        return self.graph.call_method("permute", (node, tuple(order)))
