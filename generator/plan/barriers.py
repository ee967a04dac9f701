"""The order of a block's tasks with the fewest barriers, by depth.

A barrier of the block is needed where a value goes through shared memory from one thread to
another, and before the bytes it lay in are written anew. A task's depth is the largest number of
barriers on a path that leads to it; tasks of one depth share an epoch, and so all paths share
their barriers: as many are needed as the longest path has, and no more are used.

In a loop paths go round: an edge of distance d leads to the d-th pass after, d times the barriers
of one pass later. For a given number of barriers per pass the epochs are the least solution of
these difference constraints, if there is one; the fewest barriers for which there is one are taken
(the recurrence bound of modulo scheduling). The last epoch of a pass is the first of the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edge:
    """`then` runs after `first` of `distance` passes before; across a barrier if threads differ."""

    first: str
    then: str
    barrier: bool = False
    distance: int = 0


@dataclass(frozen=True)
class Section:
    """Tasks in an order that is possible; a loop's run again and again."""

    tasks: tuple[str, ...]
    loop: bool = False


@dataclass(frozen=True)
class Schedule:
    """When every task runs.

    `epochs` counts the barriers before a task, those of one pass of each loop. A section's
    `order` holds its tasks by epoch, a barrier between any two; `entry` says whether a barrier
    stands before the section.
    """

    epochs: Mapping[str, int]
    order: tuple[tuple[tuple[str, ...], ...], ...]
    entry: tuple[bool, ...]

    def barriers(self, section: int) -> int:
        """Return the barriers inside a section, of one pass."""
        return len(self.order[section]) - 1


def schedule(sections: Sequence[Section], edges: Sequence[Edge]) -> Schedule:
    """Return the schedule with the fewest barriers, those inside loops counted first.

    Tasks of one epoch keep the order that they are given in.
    """
    epochs: dict[str, int] = {}
    order, entry, base = [], [], 0
    for section in sections:
        floors = dict.fromkeys(section.tasks, 0)
        for e in edges:
            if e.first in epochs and e.then in floors:
                floors[e.then] = max(floors[e.then], epochs[e.first] + e.barrier - base)
        depths, passes = _depths(section, edges, floors)
        waits = any(floors[t] > depths[t] for t in section.tasks)
        base += waits
        epochs |= {t: base + depths[t] for t in section.tasks}
        order.append(
            tuple(tuple(t for t in section.tasks if depths[t] == i) for i in range(passes + 1))
        )
        entry.append(waits)
        base += passes
    return Schedule(epochs, tuple(order), tuple(entry))


def _depths(
    section: Section, edges: Sequence[Edge], floors: Mapping[str, int]
) -> tuple[dict[str, int], int]:
    """Return each task's depth in its section, and the barriers of one pass.

    A loop meets what earlier sections ask for (`floors`) with a barrier inside where that costs no
    more of them, else one stands before it; so it does where everything waits.
    """
    inner = [e for e in edges if e.first in floors and e.then in floors]
    nothing = dict.fromkeys(floors, 0)
    for passes in range(len(floors) + 2):
        for given in (floors, nothing) if section.loop else (floors,):
            depths = _least(inner, given, passes)
            if depths is not None:
                idle = 0 if section.loop else min(depths.values(), default=0)
                return {t: depth - idle for t, depth in depths.items()}, passes - idle
    raise ValueError("edges of distance 0 go round in a circle")


def _least(edges: Sequence[Edge], floors: Mapping[str, int], passes: int) -> dict[str, int] | None:
    """Return the least depths that meet all edges with that many barriers per pass, if any do."""
    depths = dict(floors)
    for _ in range(len(depths) + 1):
        late: dict[str, int] = {}
        for e in edges:
            least = depths[e.first] + e.barrier - passes * e.distance
            if least > late.get(e.then, depths[e.then]):
                late[e.then] = least
        depths |= late
        if max(depths.values(), default=0) > passes:
            return None
        if not late:
            return depths
    return None
