"""Elementwise functions of tensors side by side, moved in front of where these are joined.

    f(x, cat(a, b))            ->  cat(f(x[:n], a), f(x[n:], b))
    f(x, stack(a, b).flatten)  ->  stack(f(x[::2], a), f(x[1::2], b)).flatten

Slices are views and `cat` or `stack` then takes what kernels make, so that kernels write into the
parts of its one result. It is done in the graphs that torch.export made, before they are cut, alike
in all of them: for pieces of static extents alone, and not beyond an operator that writes over its
operand.
Parts of a `split` or `chunk` become slices.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from mirage_kernels.generator.frontend.aten import ATEN
from mirage_kernels.generator.frontend.editing import CASTS, added, is_view
from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.frontend.repeats import without_repeats
from mirage_kernels.generator.partition.rewriting import regions

Node = Any  # torch.fx.Node
SPLITS = frozenset(("split", "split_with_sizes", "chunk"))
_FLAT = frozenset(("flatten", "view", "reshape", "_unsafe_view"))
Range = tuple[int, int, int]  # start, end and step along a dim


@dataclass(frozen=True)
class Join:
    """A value that pieces make: in ranges along a dim, which is counted from the end."""

    node: Node
    pieces: Sequence[Node]
    at: int
    ranges: tuple[Range, ...]


def sliced(graphs: Sequence[Any]) -> None:
    """Write the parts of a split as slices, in the graphs of one function at several extents."""
    for both in [*zip(*(graph.nodes for graph in graphs), strict=True)]:
        if operator_of(both[0]) in SPLITS and _same([_parts(n) for n in both]):
            for graph, node in zip(graphs, both, strict=True):
                _sliced(graph, node)


def in_pieces(graphs: Sequence[Any]) -> None:
    """Move functions in front of cats, in the graphs of one function at several extents."""
    nodes = [*zip(*(graph.nodes for graph in graphs), strict=True)]
    joins = [both for both in nodes if all(map(join_of, both))]
    joins = [both for both in joins if _same([own.ranges for n in both if (own := join_of(n))])]
    for i, graph in enumerate(graphs):
        _Pieces(graph).move([both[i] for both in joins])
        _without_empty(graph)
        _with_copies(graph)
        without_repeats(graph)


def _without_empty(graph: Any) -> None:
    """Leave out what cats join that has no elements, as a rotation of whole heads leaves it."""
    for cat in filter(is_cat, [*graph.nodes]):
        kept = [x for x in cat.args[0] if 0 not in shape_of(x)]
        cat.update_arg(0, kept or cat.args[0][:1])


def _with_copies(graph: Any) -> None:
    """Let kernels copy what a cat has beside values that they compute.

    As what `copies_in` adds, a copy is the value times one.
    """
    for cat in filter(is_cat, [*graph.nodes]):
        inner = {x: own.pieces for x in cat.args[0] if (own := inner_of(x, cat))}
        plain = [x for x in cat.args[0] if x not in inner and (x.op == "placeholder" or is_view(x))]
        computed = any(is_elementwise(n) for x in cat.args[0] for n in inner.get(x, [x]))
        if cat.meta["val"].is_floating_point() and computed:
            made = {x: _times_one(graph, x, cat) for x in dict.fromkeys(plain)}
            cat.update_arg(0, [made.get(x, x) for x in cat.args[0]])


def _times_one(graph: Any, value: Node, before: Node) -> Node:
    """Return a value times one in front of a node: a copy that a kernel may make."""
    import torch

    return added(graph, before, torch.ops.aten.mul.Tensor, (value, 1))


def _same(values: Sequence[object]) -> bool:
    return all(value == values[0] for value in values)


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the extents of a value."""
    return tuple(map(int, node.meta["val"].shape))


def is_turned(value: Node, by: Node) -> bool:
    """Say whether a node spreads a value along a dim in front of those that the value has.

    Tiles that store such a result well do not sum up well: sums want few whole rows, the result
    runs along them.
    """
    if any(isinstance(n.meta["val"], tuple | list) for n in (value, by)):
        return False
    made, own = shape_of(by), shape_of(value)
    own = (1,) * (len(made) - len(own)) + own
    kept = next((i for i, n in enumerate(own) if n != 1), 0)
    return any(n != 1 for n in made[:kept])


def is_cat(node: Node) -> bool:
    """Say whether a node joins tensors of its own type and number of dims."""
    if operator_of(node) != "cat" or node.op != "call_function":
        return False
    made, given = node.meta["val"], [n.meta["val"] for n in node.args[0]]
    return all((x.dtype, x.dim()) == (made.dtype, made.dim()) for x in given)


def is_stack(node: Node) -> bool:
    """Say whether a node stacks tensors of its own type."""
    if operator_of(node) != "stack" or node.op != "call_function":
        return False
    return all(n.meta["val"].dtype is node.meta["val"].dtype for n in node.args[0])


def is_join(node: Node) -> bool:
    """Say whether a node has its operands side by side in memory of its own."""
    return is_cat(node) or is_stack(node)


def join_of(node: Node) -> Join | None:
    """Return what a cat joins, or a stack along a new last dim whose elements lie in turn then."""
    if is_cat(node):
        own = tuple((start, end, 1) for start, end in ranges(extents(node)))
        return Join(node, node.args[0], joined_dim(node), own)
    if node.op != "call_function" or operator_of(node) not in _FLAT or not is_stack(node.args[0]):
        return None
    pieces = node.args[0].args[0]
    *outer, inner = shape_of(pieces[0]) or (1,)
    length = inner * len(pieces)
    if joined_dim(node.args[0]) != -1 or shape_of(node) != (*outer, length):
        return None
    in_turn = tuple((i, length, len(pieces)) for i in range(len(pieces)))
    return Join(node, pieces, -1, in_turn)


def inner_of(piece: Node, cat: Node) -> Join | None:
    """Return what a piece of a cat joins in turn along the same dim, for this cat alone."""
    join = join_of(piece)
    if join is None or is_cat(piece) or joined_dim(cat) != join.at:
        return None
    alone = {*piece.users} == {cat} and {*piece.args[0].users} == {piece}
    return join if alone and len({*join.pieces}) == len(join.pieces) else None


def inside(cat: Node) -> list[Node]:
    """Return the stacks that are joined inside of a cat, and their flat views."""
    flat = [x for x in cat.args[0] if inner_of(x, cat) is not None]
    return [*flat, *(x.args[0] for x in flat)]


def outer_of(node: Node) -> Node | None:
    """Return the cat that a stack is joined inside of."""
    users = (cat for view in node.users for cat in view.users if is_stack(node) and is_cat(cat))
    return next((cat for cat in users if node in inside(cat)), None)


def joined_dim(cat: Node) -> int:
    """Return the dim along which a cat or a stack joins, counted from the end."""
    dim = int([*cat.args, *cat.kwargs.values(), 0][1]) if len(cat.args) + len(cat.kwargs) > 1 else 0
    return dim if dim < 0 else dim - len(shape_of(cat))


def extents(cat: Node) -> tuple[int, ...]:
    """Return the extents of the pieces that a cat or a stack joins, along its dim."""
    if is_stack(cat):
        return (1,) * len(cat.args[0])
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
        user.replace_all_uses_with(_slice(graph, split.args[0], dim, (start, end, 1)))
        graph.erase_node(user)
    if not split.users:
        graph.erase_node(split)


def _slice(graph: Any, x: Node, dim: int, taken: Range) -> Node:
    """Return the one slice of a tensor that is so, behind the tensor."""
    import torch

    target = torch.ops.aten.slice.Tensor
    rank = len(shape_of(x))
    there = [u for u in x.users if u.target is target and range_of(u) == (dim % rank, taken)]
    if not there:
        with graph.inserting_after(x):
            made = graph.call_function(target, (x, dim, *(taken if taken[2] > 1 else taken[:2])))
        made.meta = {**x.meta, "val": target(x.meta["val"], dim, *taken)}
        return made
    made, *others = there
    x.append(made)
    for old in others:
        old.replace_all_uses_with(made)
        graph.erase_node(old)
    return made


def range_of(node: Node) -> tuple[int, Range] | None:
    """Return the dim and the range of a slice, None of one that is no static range."""
    given: dict[str, Any] = {"dim": 0, "start": None, "end": None, "step": 1}
    given |= dict(zip(given, node.args[1:], strict=False))
    if not all(isinstance(n, int | None) for n in given.values()):
        return None
    shape, step = shape_of(node.args[0]), int(given["step"])
    start, end, _ = slice(given["start"], given["end"], step).indices(shape[given["dim"]])
    return given["dim"] % len(shape), (start, end, step)


def repeats(node: Node, at: int) -> int:
    """Return how often each element of an operand stands in turn along a dim; 0: no such node."""
    if operator_of(node) != "repeat_interleave" or node.op != "call_function":
        return 0
    given: list[Any] = [*node.args[1:], *node.kwargs.values()]
    times, dim = given[0], given[1] if len(given) > 1 else None
    if not isinstance(times, int) or not isinstance(dim, int):
        return 0
    return times if dim % len(shape_of(node)) == len(shape_of(node)) + at else 0


def is_elementwise(node: Node) -> bool:
    """Say whether each element of a node's result is of one element of each operand."""
    import torch

    schema = getattr(node.target, "_schema", None)  # none of one of several results
    if schema is None or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    op, mutable = operator_of(node), schema.is_mutable
    return not mutable and (op in CASTS or (pointwise and op in ATEN))


WRITTEN_AT = {"copy": 1, "index_put": 2, "index_copy": 3}  # which operand such operators write


def copies_in(graph: Any) -> dict[Node, Node]:
    """Add what kernels copy over something as it is, and return it by the node that writes it.

    It is the value itself times one: a node of its own, which a kernel may make. Nothing takes it.
    """
    import torch

    found = dict[Node, Node]()
    for node in [n for n in graph.nodes if n.op == "call_function"]:
        at = WRITTEN_AT.get(operator_of(node))
        value = node.args[at] if at is not None and node.target._schema.is_mutable else None
        if isinstance(value, torch.fx.Node) and value.meta["val"].is_floating_point():
            found[node] = _times_one(graph, value, node)
    return found


class _Pieces:
    """A graph in which elementwise functions are moved in front of cats."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.region = regions(graph)  # between operators that write over their operands

    def move(self, joins: Sequence[Node]) -> None:
        """Move what all users of a join compute in front of it, and on from there."""
        todo = [*joins]
        while todo:
            node = todo.pop(0)
            users = [*node.users]  # none of one that was erased
            join = join_of(node) if users else None
            if join and all(self.is_movable(u, join.node, join.at) for u in users):
                todo += [self.moved(join, user) for user in users]
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

    def is_movable(self, user: Node, joined: Node, at: int) -> bool:
        """Say whether a user of what is joined may be computed piece by piece, or a view for it."""
        inserts = user.op == "call_function" and operator_of(user) == "unsqueeze"
        if not (inserts or is_elementwise(user)) or self.region[user] != self.region[joined]:
            return False
        shape = shape_of(user)
        whole = len(shape) >= -at and shape[at] == shape_of(joined)[at]
        if not inserts:
            return whole
        before = user.args[1] % len(shape) < len(shape) + at
        return whole and before and all(self.is_movable(u, user, at) for u in user.users)

    def moved(self, join: Join, user: Node) -> Node:
        """Return the join of what a user computes of each piece, in the place of the user."""
        import torch

        aten = torch.ops.aten
        pieces = [self.applied(user, user, join.at, piece) for piece in join.ranges]
        with self.graph.inserting_before(user):
            if is_cat(join.node):
                dim = len(shape_of(user)) + join.at
                made = self.graph.call_function(aten.cat.default, (pieces, dim))
            else:
                stack = self.graph.call_function(aten.stack.default, (pieces, -1))
                vals = [piece.meta["val"] for piece in pieces]
                stack.meta = {**user.meta, "val": aten.stack.default(vals, -1)}
                self.region[stack] = self.region[user]
                made = self.graph.call_function(aten.flatten.using_ints, (stack, -2))
        made.meta = dict(user.meta)
        self.region[made] = self.region[user]
        user.replace_all_uses_with(made)
        self.erase(user)
        return made

    def applied(self, node: Node, user: Node, at: int, piece: Range) -> Node:
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

    def piece(self, x: Node, taker: Node, user: Node, at: int, piece: Range) -> Node:
        """Return what one piece of a taker takes of an operand."""
        shape, join = shape_of(x), join_of(x)
        if len(shape) < -at or shape[at] == 1:
            return x
        if join and join.at == at and piece in join.ranges:
            return join.pieces[join.ranges.index(piece)]
        if repeats(x, at) == piece[2] > 1:
            return x.args[0]
        alone = {*x.users} == {taker} and self.region.get(x) == self.region[user]
        if alone and is_elementwise(x):
            return self.applied(x, user, at, piece)
        made = _slice(self.graph, x, len(shape) + at, piece)
        self.region[made] = self.region.get(x, 0)
        return made

    def erase(self, node: Node) -> None:
        """Erase a node that nothing takes any more, and what was computed for it alone."""
        movable = join_of(node) or is_stack(node) or repeats(node, -1)
        if node.users or not (movable or is_elementwise(node)):
            return
        given = node.all_input_nodes
        self.graph.erase_node(node)
        for other in given:
            self.erase(other)
