"""Horizontal fusion: elementwise kernels that take nothing of each other become one launch.

What goes to rows of a cache as it is, such a launch copies too; alone it stays PyTorch's. Parts of
a program come in another order then: each behind those that it depends on, through values and
through the memory that both know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from itertools import chain
from operator import or_

from mirage_kernels.generator.errors import GraphError, RecipeError
from mirage_kernels.generator.partition.groups import Grouping, Kind
from mirage_kernels.generator.partition.order import parts_of
from mirage_kernels.generator.partition.parts import Part
from mirage_kernels.generator.partition.reductions import reduces
from mirage_kernels.generator.partition.trace import Node, memory_of, written_by

MOST_TOGETHER = 8  # kernels of a launch: its arguments are 4 KiB at most
MOST_TENSORS = 48  # of them together
RANDOM = "the state of random numbers"


def launches_of(grouping: Grouping) -> list[Part]:
    """Return a grouping's parts in order, kernels that one launch runs as one part."""
    trace = grouping.trace
    copies = {n: c for n, c in trace.copies.items() if c not in grouping.unjoined}
    while True:  # ends: what no launch copies is PyTorch's, and the others are looked at again
        parts = joined(parts_of(grouping, copies), grouping.unjoined)
        members = [m for p in parts for m in p.members]
        placed = {n for m in members for n in m.places}
        kept = {n: c for n, c in copies.items() if c in placed}
        if kept == copies:
            return parts
        copies = kept


@dataclass(frozen=True)
class Touched:
    """What a part takes and makes, and the memory that it reads and writes."""

    part: Part

    @cached_property
    def takes(self) -> set[Node]:
        """Values that must be there."""
        ends = (p.whole for p in self.part.places.values() if p.whole is not p.call)
        return {*self.part.taken, *ends}

    @cached_property
    def reads(self) -> set[object]:
        """Memory of what it takes."""
        return {*map(self._memory, self.part.taken), *self._random}

    @cached_property
    def writes(self) -> set[object]:
        """Memory that it writes over: of the tensors that its results are parts of, too."""
        places = (p.whole for p in self.part.places.values())
        called = self.part.nodes[:1] if self.part.kind is Kind.CALL else ()
        ends = (n for node in called for n in written_by(node))
        return {*map(self._memory, (*places, *ends)), *self._random}

    @property
    def _random(self) -> set[object]:
        import torch

        tags = getattr(self.part.nodes[0].target, "tags", ())
        seeded = self.part.kind is Kind.CALL and torch.Tag.nondeterministic_seeded in tags
        return {RANDOM} if seeded else set()

    def _memory(self, node: Node) -> Node:
        return memory_of(self.part.trace, node)

    def precedes(self, other: Touched) -> bool:
        """Say whether another part, behind this one, must stay there."""
        taken = {*self.part.results} & other.takes
        if taken or self.writes & other.reads or self.reads & other.writes:
            return True
        return any(not self._apart(other, memory) for memory in self.writes & other.writes)

    def _apart(self, other: Touched, memory: object) -> bool:
        """Say whether both are kernels that write pieces of one tensor."""
        both = (self.part, other.part)
        places = [p for part in both for p in part.places.values()]
        calls = {p.call for p in places if self._memory(p.whole) is memory}
        return len(calls) == 1 and not any(part.kind is Kind.CALL for part in both)


def joined(parts: Sequence[Part], unjoined: Collection[Node]) -> list[Part]:
    """Return parts in order, with those as one that one launch may run.

    A part joins the first launch that no other part has to come between.
    """
    touched = [Touched(p) for p in parts]
    needs = [[i for i in range(j) if touched[i].precedes(touched[j])] for j in range(len(parts))]
    units: dict[int, tuple[int, ...]] = {
        i: (i,) for i in range(len(parts))
    }  # by the place of the first part
    behind, fitting = _closed(needs), list[int]()
    for i, part in enumerate(parts):
        if {*part.results} & {*unjoined} or not is_light(part):
            continue
        for first in fitting:
            together = (*units[first], i)
            free = not any(behind[i] >> j & 1 for j in units[first])
            tried = {**{k: u for k, u in units.items() if k != i}, first: together}
            if free and _fit([parts[j] for j in together]) and in_order(tried, needs):
                units = tried
                break
        else:
            fitting.append(i)
    return [united([parts[i] for i in units[k]]) for k in in_order(units, needs)]


def _closed(needs: Sequence[Sequence[int]]) -> list[int]:
    """Return for each part all that it needs, and what that needs, as bits."""
    found = list[int]()
    for own in needs:
        found.append(reduce(or_, (1 << i | found[i] for i in own), 0))
    return found


def is_light(part: Part) -> bool:
    """Say whether a general kernel runs a part, element by element, whatever launch it is in."""
    apart = part.places or part.gathers or any(map(part.is_seen, part.inputs))
    if part.kind is not Kind.CHAIN or not apart or any(map(reduces, part.computing)):
        return False
    try:
        made = part.recipe("part")
        return made.strided and not made.stores
    except (GraphError, RecipeError):
        return False


def _fit(parts: Sequence[Part]) -> bool:
    """Say whether parts are few enough, and none looks at what is made inside of another."""
    tensors = sum(len(p.taken) + len(p.results) for p in parts)
    inside = {n for p in parts for n in p.nodes}
    beside = any(inside & {*p.inputs} for p in parts)
    return len(parts) <= MOST_TOGETHER and tensors <= MOST_TENSORS and not beside


def in_order(units: Mapping[int, Sequence[int]], needs: Sequence[Sequence[int]]) -> list[int]:
    """Return units of parts so that each comes behind what it needs, else as they are.

    Nothing where there is no such order: a unit would have to come behind itself.
    """
    unit_of = {i: k for k, unit in units.items() for i in unit}
    left = {k: {unit_of[n] for i in unit for n in needs[i]} for k, unit in units.items()}
    with suppress(CycleError):
        order, ready, sorter = list[int](), list[int](), TopologicalSorter(left)
        sorter.prepare()
        while sorter.is_active():
            for k in sorter.get_ready():
                heappush(ready, k)
            order.append(heappop(ready))
            sorter.done(order[-1])
        return order
    return []


def united(parts: Sequence[Part]) -> Part:
    """Return kernels as the part of a program that one launch runs."""
    if len(parts) == 1:
        return parts[0]
    trace = parts[0].trace
    place = {n: i for i, n in enumerate((*trace.nodes, *trace.copies.values()))}
    nodes = sorted({n for p in parts for n in p.nodes}, key=place.__getitem__)
    return Part(
        trace,
        Kind.CHAIN,
        tuple(nodes),
        _each(p.inputs for p in parts),
        _each(p.results for p in parts),
        {n: place for p in parts for n, place in p.places.items()},
        {n: access for p in parts for n, access in p.gathers.items()},
        tuple(parts),
    )


def _each(several: Iterator[Sequence[Node]]) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(several)))
