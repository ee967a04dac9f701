"""Elementwise functions of tensors side by side, moved in front of where these are joined.

    f(x, cat(a, b))  ->  cat(f(x[:n], a), f(x[n:], b))

Slices are views and `cat` then takes what kernels make, so that kernels write into the parts of its
one result. It is done in the graphs that torch.export made, before they are cut, alike in all of
them: for pieces of static extents alone, and not beyond an operator that writes over its operand.
Parts of a `split` or `chunk` become slices.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from mirage_kernels.generator.frontend.aten import ATEN
from mirage_kernels.generator.frontend.export import operator_of

Node = Any  # torch.fx.Node
CASTS = frozenset(("to", "_to_copy"))
SPLITS = frozenset(("split", "split_with_sizes", "chunk"))


def in_pieces(graphs: Sequence[Any]) -> None:
    """Rewrite the graphs of one function, traced at several extents."""
    nodes = [*zip(*(graph.nodes for graph in graphs), strict=True)]
    for both in nodes:
        if operator_of(both[0]) in SPLITS and _same([_parts(n) for n in both]):
            for graph, node in zip(graphs, both, strict=True):
                _sliced(graph, node)
    cats = [both for both in nodes if is_cat(both[0]) and _same([extents(n) for n in both])]
    for i, graph in enumerate(graphs):
        _Pieces(graph).move([both[i] for both in cats])


def _same(values: Sequence[object]) -> bool:
    return all(value == values[0] for value in values)


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the extents of a value."""
    return tuple(map(int, node.meta["val"].shape))


def is_cat(node: Node) -> bool:
    """Say whether a node joins tensors of its own type and number of dims."""
    if operator_of(node) != "cat" or node.op != "call_function":
        return False
    made, given = node.meta["val"], [n.meta["val"] for n in node.args[0]]
    return all((x.dtype, x.dim()) == (made.dtype, made.dim()) for x in given)


def joined_dim(cat: Node) -> int:
    """Return the dim along which a cat joins, counted from the end."""
    dim = int([*cat.args, *cat.kwargs.values(), 0][1]) if len(cat.args) + len(cat.kwargs) > 1 else 0
    return dim if dim < 0 else dim - len(shape_of(cat))


def extents(cat: Node) -> tuple[int, ...]:
    """Return the extents of the pieces that a cat joins, along its dim."""
    return tuple(shape_of(n)[joined_dim(cat)] for n in cat.args[0])


def ranges(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return where pieces start and end."""
    return [*pairwise(accumulate(lengths, initial=0))]


def _parts(split: Node) -> tuple[int, tuple[int, ...]]:
    """Return the dim that an operator splits, and the lengths of its results."""
    given = {**dict(zip(("x", "sizes", "dim"), split.args, strict=False)), **split.kwargs}
    dim = int(given.get("dim", 0)) % len(shape_of(split.args[0]))
    return dim, tuple(int(x.shape[dim]) for x in split.meta["val"])


def _sliced(graph: Any, split: Node) -> None:
    """Replace the results of a split by slices."""
    dim, lengths = _parts(split)
    for user in [u for u in split.users if u.target is operator.getitem]:
        start, end = ranges(lengths)[user.args[1]]
        user.replace_all_uses_with(_slice(graph, split.args[0], dim, start, end))
        graph.erase_node(user)
    if not split.users:
        graph.erase_node(split)


def _slice(graph: Any, x: Node, dim: int, start: int, end: int) -> Node:
    """Return a slice of a tensor, which takes the place of those that are the same."""
    import torch

    target = torch.ops.aten.slice.Tensor
    rank = len(shape_of(x))
    with graph.inserting_after(x):
        made = graph.call_function(target, (x, dim, start, end))
    made.meta = {**x.meta, "val": target(x.meta["val"], dim, start, end)}
    for old in [u for u in x.users if u is not made and u.target is target]:
        if _range(old) == (dim % rank, start, end):
            old.replace_all_uses_with(made)
            graph.erase_node(old)
    return made


def _range(node: Node) -> tuple[int, int, int] | None:
    """Return the dim and the range of a slice, None of one that is no plain range."""
    given: dict[str, Any] = {"dim": 0, "start": None, "end": None, "step": 1}
    given |= dict(zip(given, node.args[1:], strict=False))
    if given["step"] != 1 or not all(isinstance(n, int | None) for n in given.values()):
        return None
    shape = shape_of(node.args[0])
    start, end, _ = slice(given["start"], given["end"]).indices(shape[given["dim"]])
    return given["dim"] % len(shape), start, end


class _Pieces:
    """A graph in which elementwise functions are moved in front of cats."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.region: dict[Node, int] = {}  # between operators that write over their operands
        count = 0
        for node in graph.nodes:
            self.region[node] = count
            schema = getattr(node.target, "_schema", None)
            count += bool(schema is not None and schema.is_mutable)

    def move(self, cats: Sequence[Node]) -> None:
        """Move what all users of a cat compute in front of it, and on from there."""
        todo = [*cats]
        while todo:
            cat = todo.pop(0)
            users = [*cat.users]  # none of one that was erased
            if all(self.is_movable(u, cat) for u in users):
                todo += [self.moved(cat, user) for user in users]
        for cat in filter(is_cat, self.graph.nodes):
            self.flatten(cat)

    def flatten(self, cat: Node) -> None:
        """Join at once what another cat has joined along the same dim for this one alone."""
        at, given = joined_dim(cat), list[Node]()
        for x in cat.args[0]:
            same = is_cat(x) and joined_dim(x) == at and {*x.users} == {cat}
            same = same and self.region[x] == self.region[cat]
            given += x.args[0] if same else [x]
        cat.update_arg(0, given)

    def is_elementwise(self, node: Node) -> bool:
        """Say whether each element of a node's result is of one element of each operand."""
        import torch

        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
        op, mutable = operator_of(node), node.target._schema.is_mutable
        return not mutable and (op in CASTS or (pointwise and op in ATEN))

    def is_movable(self, user: Node, cat: Node) -> bool:
        """Say whether a user of a cat may be computed piece by piece."""
        if not self.is_elementwise(user) or self.region[user] != self.region[cat]:
            return False
        at = joined_dim(cat)
        return len(shape_of(user)) >= -at and shape_of(user)[at] == shape_of(cat)[at]

    def moved(self, cat: Node, user: Node) -> Node:
        """Return the cat of what a user computes of each piece, in the place of the user."""
        import torch

        at, own = joined_dim(cat), ranges(extents(cat))
        pieces = [self.applied(user, user, at, piece) for piece in own]
        dim = len(shape_of(user)) + at
        with self.graph.inserting_before(user):
            made = self.graph.call_function(torch.ops.aten.cat.default, (pieces, dim))
        made.meta = dict(user.meta)
        self.region[made] = self.region[user]
        user.replace_all_uses_with(made)
        self.erase(user)
        return made

    def applied(self, node: Node, user: Node, at: int, piece: tuple[int, int]) -> Node:
        """Return one piece of an elementwise node, computed in front of a user."""
        import torch

        args, kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda n: self.piece(n, node, user, at, piece)
        )
        with self.graph.inserting_before(user):
            made = self.graph.call_function(node.target, args, kwargs)
        vals = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        made.meta = {**node.meta, "val": node.target(*vals[0], **vals[1])}
        self.region[made] = self.region[user]
        return made

    def piece(self, x: Node, taker: Node, user: Node, at: int, piece: tuple[int, int]) -> Node:
        """Return what one piece of a taker takes of an operand."""
        shape = shape_of(x)
        if len(shape) < -at or shape[at] == 1:
            return x
        if is_cat(x) and joined_dim(x) == at and piece in ranges(extents(x)):
            return x.args[0][ranges(extents(x)).index(piece)]
        alone = {*x.users} == {taker} and self.region.get(x) == self.region[user]
        if alone and self.is_elementwise(x):
            return self.applied(x, user, at, piece)
        made = _slice(self.graph, x, len(shape) + at, *piece)
        self.region.setdefault(made, self.region.get(x, 0))
        return made

    def erase(self, node: Node) -> None:
        """Erase a node that nothing takes any more, and what was computed for it alone."""
        if node.users or not (is_cat(node) or self.is_elementwise(node)):
            return
        given = node.all_input_nodes
        self.graph.erase_node(node)
        for other in given:
            self.erase(other)
