"""Where kernels write results: into parts of what a `cat` joins, or where `copy_` copies to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mirage_kernels.generator.errors import RecipeError
from mirage_kernels.generator.frontend.editing import CASTS, is_view, mutates
from mirage_kernels.generator.frontend.export import operator_of
from mirage_kernels.generator.partition.indices import (
    Access,
    gather_of,
    is_addressed,
    numbered,
    strides_in_memory,
    write_of,
)
from mirage_kernels.generator.partition.pieces import (
    extents,
    inner_of,
    inside,
    is_cat,
    is_join,
    joined_dim,
    outer_of,
    ranges,
    shape_of,
)
from mirage_kernels.generator.partition.products import is_wide
from mirage_kernels.generator.partition.trace import (
    Node,
    Trace,
    base_of,
    memory_of,
)
from mirage_kernels.generator.partition.views import Own, in_its_order, in_order, looked_at

if TYPE_CHECKING:
    import torch

Step = dict[str, Any]
WHOLE = -1  # in place of a dim: all of a tensor


@dataclass(frozen=True)
class Flow:
    """What a part of a program computes, takes and gives; `called`: PyTorch runs its one node."""

    nodes: Sequence[Node]
    inputs: Sequence[Node]
    results: Sequence[Node]
    called: bool
    plain: bool = False  # a kernel of elementwise functions and sums


@dataclass(frozen=True)
class Place:
    """Where a result goes instead of by `call`: a tensor, or its range along one dim.

    Of the range every element, or every `step`-th.
    """

    call: Node
    whole: Node
    dim: int = WHOLE
    start: int = 0
    end: int = 0
    step: int = 1
    write: Access | None = None  # rows that an index says
    joined: Node | None = None  # a cat that is written so, its range is meant

    def seen(self, trace: Trace, value: Node, own: Own) -> torch.Tensor:
        """Return a result that is written by an index, in its place, without memory."""
        assert self.write is not None
        made = self.write.standing_in(trace, own)
        if self.joined is not None:
            made = self._part(_viewed(made, own(self.joined)))
        return _viewed(made, own(value))

    def strides(self, trace: Trace, value: Node, own: Own) -> tuple[int, ...]:
        """Return the strides of a result in its place, in one of the two traces.

        Raises RuntimeError where a tensor has none for the extents of the result.
        """
        import torch

        if self.write is not None:
            return strides_in_memory(self.seen(trace, value, own))
        if self.dim == WHOLE:
            return in_order(looked_at(trace, self.whole, own).view(shape_of(own(value))))
        part = self._part(torch.empty(shape_of(own(self.whole)), device="meta"))
        return in_order(_viewed(part, own(value)))

    def _part(self, whole: torch.Tensor) -> torch.Tensor:
        """Return its range of a tensor."""
        return whole[(slice(None),) * self.dim + (slice(self.start, self.end, self.step),)]

    def data(self, trace: Trace) -> Step:
        """Return the place as data."""
        made = {"value": trace.name(self.whole)}
        if self.dim == WHOLE:
            return made
        size = len(range(self.start, self.end, self.step))
        part = {"dim": self.dim, "start": self.start, "size": size}
        part |= {"step": self.step} if self.step > 1 else {}
        if self.write is not None:
            return made | self._rows_of_pieces(trace, part)
        return made | {"shape": trace.shape(self.whole)} | part

    def _rows_of_pieces(self, trace: Trace, part: Step) -> Step:
        """Return a range of a cat that is written into rows: what the rows are seen as, and it."""
        assert self.write is not None
        assert self.joined is not None
        whole = _viewed(self.write.standing_in(trace, _mine), self.joined)
        found, shape = numbered(whole), trace.shape(self.joined)
        shape[found[0] : found[-1] + 1] = [trace.shape(self.whole)[self.write.dim]]
        dim = self.dim % len(shape_of(self.joined))
        return {"seen": shape} | part | {"dim": dim - (len(found) - 1) * (dim > found[0])}


def places_of(trace: Trace, parts: Sequence[Flow], apart: Collection[Node]) -> dict[Node, Place]:
    """Return where the kernels of a program write, by their results.

    What an index in `apart` says PyTorch writes.
    """
    made = {n: i for i, p in enumerate(parts) if not p.called for n in p.results}
    changed = {memory_of(trace, n.all_input_nodes[0]) for n in trace.nodes if mutates(n)}
    kept = {memory_of(trace, n) for n in trace.results}
    taken: dict[Node, Place] = {}
    for i, part in enumerate(parts):
        found = list[tuple[Node, Place]]()
        (node,) = part.nodes if part.called else (None,)
        if node is not None and is_join(node) and node not in changed and not outer_of(node):
            found = [*pieces(trace, node)]
        elif node is not None and operator_of(node) == "copy" and mutates(node):
            found = [*_copied(trace, parts, i, made)]
        for n, place in found:
            start, types = made.get(n, i), {x.meta["val"].dtype for x in (n, place.whole)}
            both_wide = len(types) == 1 and is_wide(trace, n, parts[start].nodes)
            alike = types == {trace.dtype} or both_wide
            if alike and n not in {*taken, *changed, *kept} and start < i:
                taken[n] = place
        access = write_of(trace, node) if node is not None and node not in apart else None
        if access is not None:
            taken |= dict(_written(trace, parts, i, access))
        plain = node is not None and operator_of(node) == "copy"
        if (access or plain) and node not in {p.call for p in taken.values()}:
            taken |= _copies(trace, parts, i, access)
    return taken


def gathers_of(trace: Trace, parts: Sequence[Flow], apart: Collection[Node]) -> dict[Node, Access]:
    """Return what an index reads for elementwise kernels alone: they can read it themselves."""
    owns = [_mine, trace.pairs.__getitem__]
    found = dict[Node, Access]()
    for node in (p.nodes[0] for p in parts if p.called):
        access = gather_of(trace, node) if node not in apart else None
        if access is None or any(base_of(trace, r) is node for r in trace.results):
            continue
        pairs = [(p, n) for p in parts for n in p.inputs if base_of(trace, n) is node]
        kernels = [(p, n) for p, n in pairs if not (p.called and is_view(p.nodes[0]))]
        plain = all(p.plain for p, _ in kernels)
        if plain and all(is_addressed(trace, access, n, owns) for _, n in kernels):
            found[node] = access
    return found


def _written(
    trace: Trace, parts: Sequence[Flow], at: int, access: Access
) -> Iterator[tuple[Node, Place]]:
    """Yield what elementwise kernels make that an index says the rows of, and nothing else takes.

    Nothing between the two may take the tensor that is written, nor the kernels themselves.
    """
    assert access.value is not None
    shape = tuple(access.standing_in(trace, _mine).shape)
    whole, value = memory_of(trace, access.table), base_of(trace, access.value)
    given = all(base_of(trace, n) in trace.inputs for n in (access.table, access.index))
    if not given or shape_of(access.value) != shape or not _flows_only(trace, value, access.node):
        return
    if not in_its_order(looked_at(trace, access.value, _mine), value):
        return
    places = [(value, Place(access.node, access.table, write=access))]
    if is_join(value):
        places = [
            (n, replace(p, call=access.node, whole=access.table, write=access, joined=value))
            for n, p in pieces(trace, value)
        ]
    first = [next((j for j, p in enumerate(parts) if n in p.results), at) for n, _ in places]
    own = [parts[j] for j in first]
    there = parts[min(first, default=at) : at]
    between = [n for p in there for n in p.inputs if not (p.called and is_view(p.nodes[0]))]
    fits = all(j < at and p.plain for j, p in zip(first, own, strict=True))
    fits &= all(_flows_only(trace, n, value) for n, _ in places if n is not value)
    types = {n.meta["val"].dtype for n in (access.table, *(n for n, _ in places))}
    if not places or not fits or types != {trace.dtype}:
        return
    if any(memory_of(trace, n) is whole for n in between) or not _addressed(trace, places):
        return
    yield from places


def _copies(
    trace: Trace, parts: Sequence[Flow], at: int, access: Access | None
) -> dict[Node, Place]:
    """Return what a kernel copies as it is where a call writes it, if one does."""
    (call,) = parts[at].nodes
    copy = trace.copies.get(call)
    if copy is None or not any(copy in p.results for p in parts[:at]):
        return {}
    to, value = access.table if access else call.args[0], copy.all_input_nodes[0]
    ends = [to, access.index] if access else [to]
    shape = tuple(access.standing_in(trace, _mine).shape) if access else shape_of(to)
    same = shape_of(value) == shape and memory_of(trace, value) is not memory_of(trace, to)
    types = {trace.dtype, *(n.meta["val"].dtype for n in (to, value))}
    given = all(base_of(trace, n) in trace.inputs for n in ends)
    if not same or len(types) > 1 or not given or not _is_alone(trace, call):
        return {}
    place = Place(call, to, write=access)
    return {copy: place} if _addressed(trace, [(copy, place)]) else {}


def _is_alone(trace: Trace, call: Node) -> bool:
    """Say whether nothing else writes what a call writes."""
    base = memory_of(trace, call.args[0])
    return not any(
        n is not call and memory_of(trace, n.args[0]) is base for n in trace.nodes if mutates(n)
    )


def _addressed(trace: Trace, places: Sequence[tuple[Node, Place]]) -> bool:
    """Say whether kernels can write results in their places, at both extents of dynamic dims."""
    owns = (_mine, trace.pairs.__getitem__)
    with suppress(RecipeError, RuntimeError):
        [p.strides(trace, n, own) for n, p in places for own in owns if p.write is None]
        rows = [(n, p) for n, p in places if p.write is not None]
        seen = [{numbered(p.seen(trace, n, own)) for own in owns} for n, p in rows]
        return all(len(found) == 1 for found in seen)
    return False


def _flows_only(trace: Trace, value: Node, user: Node) -> bool:
    """Say whether one node takes a value or views of it, and nothing else does."""
    todo, users = [value], set[Node]()
    while todo:
        node = todo.pop()
        if node in trace.results:
            return False
        for u in trace.users(node):
            todo += [u] if is_view(u) else []
            users |= set() if is_view(u) else {u}
    return users == {user}


def passed_over(trace: Trace, places: Mapping[Node, Place]) -> set[Node]:
    """Return what is between results and where they go: cats and views, stacks inside of cats."""
    found = {n for p in places.values() if is_cat(p.call) for n in inside(p.call)}
    for value, place in places.items():
        node = value if place.write is None or place.joined is None else place.joined
        todo = [] if place.write is None else [node]
        found |= {node} if node is not value else set()
        while todo:
            views = [u for u in trace.users(todo.pop()) if is_view(u)]
            found.update(views)
            todo += views
    return found


def pieces(trace: Trace, cat: Node) -> Iterator[tuple[Node, Place]]:
    """Yield what a cat or stack of static pieces joins, each once, and where it goes."""
    dim, joined = joined_dim(cat) + len(shape_of(cat)), cat.args[0]
    static = extents(cat) == extents(trace.pairs[cat]) and len({*joined}) == len(joined)
    for piece, (start, end) in zip(joined, ranges(extents(cat)), strict=True):
        inner = inner_of(piece, cat)
        if static and inner is not None:
            for at, (first, _, step) in zip(inner.pieces, inner.ranges, strict=True):
                yield at, Place(cat, cat, dim, start + first, end, step)
        elif static:
            yield piece, Place(cat, cat, dim, start, end)


def _copied(
    trace: Trace, parts: Sequence[Flow], at: int, made: Mapping[Node, int]
) -> Iterator[tuple[Node, Place]]:
    """Yield what a kernel makes that is copied into an input, unless it would come too early.

    Nothing between the two may take that input, and nothing else write over it. The kernel may take
    what it writes over if it is elementwise and has no other result.
    """
    call = parts[at].nodes[0]
    to, value = call.args[:2]
    if trace.shape(to) != trace.shape(value):
        return
    seen, value = looked_at(trace, value, _mine), base_of(trace, value)
    base, start = memory_of(trace, to), made.get(value, at)
    direct = base is base_of(trace, to) and base in trace.inputs
    if not direct or start == at or not in_its_order(seen, value):
        return
    writing = [n for n in trace.nodes if mutates(n) and memory_of(trace, n.args[0]) is base]
    between = [
        n for p in parts[start + 1 : at] for n in p.inputs if not (p.called and is_view(p.nodes[0]))
    ]
    read = {n for n in parts[start].inputs if memory_of(trace, n) is base}
    alone = len(parts[start].results) == 1 and read == {to} and _is_elementwise(trace, parts[start])
    clear = not any(memory_of(trace, n) is base for n in between)
    if writing == [call] and clear and (alone or not read):
        with suppress(RuntimeError):
            place = Place(call, to)
            place.strides(trace, value, _mine)
            yield value, place


def _viewed(seen: torch.Tensor, like: Node) -> torch.Tensor:
    """Return a tensor with a value's extents; dims of one element keep their strides."""
    return seen if tuple(seen.shape) == shape_of(like) else seen.view(shape_of(like))


def _mine(node: Node) -> Node:
    return node


def _is_elementwise(trace: Trace, part: Flow) -> bool:
    """Say whether a kernel computes each element of its result of those at the same place.

    Tensors that it looks at in other ways are none that something writes over.
    """
    import torch

    views = [n for n in part.nodes if is_view(n)]
    changed = {memory_of(trace, n.all_input_nodes[0]) for n in trace.nodes if mutates(n)}
    others = (n for n in part.nodes if n not in views and operator_of(n) not in CASTS)
    return all(torch.Tag.pointwise in getattr(n.target, "tags", ()) for n in others) and not any(
        memory_of(trace, n) in changed for n in views
    )


def views_first(
    trace: Trace, parts: Sequence[Flow], places: Mapping[Node, Place]
) -> dict[int, int]:
    """Return which views come before which kernels: those of inputs that kernels write."""
    made = {n: i for i, p in enumerate(parts) for n in p.results}
    first: dict[int, int] = {}
    for value, place in sorted(places.items(), key=lambda one: made[one[0]]):
        ends = [place.whole] if place.dim == WHOLE or place.write else []
        ends += [place.write.index] if place.write else []
        for node in ends:
            way = list[int]()
            while node not in trace.inputs:
                way.insert(0, made[node])
                node = node.all_input_nodes[0]
            first.update((i, made[value]) for i in way if i > made[value] and i not in first)
    return first


def join_step(trace: Trace, call: Node, written: Mapping[Node, Place]) -> Step:
    """Return the step of a cat or copy of which kernels have written some parts."""
    if not is_join(call):
        place = next(iter(written.values()))
        return {"join": trace.name(place.whole), "copies": [], "result": trace.name(call)}
    left = [(n, place) for n, place in pieces(trace, call) if n not in written]
    copies = [place.data(trace) | {"piece": trace.name(n)} for n, place in left]
    return {"join": trace.name(call), "copies": copies, "result": trace.name(call)}
