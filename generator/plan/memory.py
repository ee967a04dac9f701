"""Shared-memory offsets: the arrangement of buffers with the smallest peak, exactly.

Time is counted in epochs, from one barrier of the block to the next: within one, nothing says which
thread is where, so that two buffers may share bytes only if no epoch needs both. A value that a
loop carries and the stages of a pipeline are live in every epoch of the loop.

This is dynamic storage allocation. In a packing pushed down as far as it goes, every buffer lies at
0 or on top of another that it conflicts with; taken in order of offset, each lies on top of all
earlier ones that it conflicts with. So an order is all there is to choose: the search below walks
orders of rising offsets and cuts those that cannot get below the best peak so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 16  # bytes: what a 16-byte copy or access asks for (PTX ISA, cp.async, ld.v4)


@dataclass(frozen=True)
class Buffer:
    """Bytes of shared memory that hold a value during some epochs."""

    name: str
    bytes: int
    live: frozenset[int]

    @property
    def size(self) -> int:
        """Bytes, rounded up to the alignment."""
        return -(-self.bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Arrangement:
    """Where each buffer lies: bytes from the start, and the buffers directly below it.

    An offset is the highest end of the buffers below, or 0: so a template whose sizes are still
    open may write down the arrangement without numbers, and it stays one for any sizes.
    """

    offsets: Mapping[str, int]  # in the order of placement
    below: Mapping[str, tuple[str, ...]]
    peak: int


def arrange(buffers: Sequence[Buffer]) -> Arrangement:
    """Return an arrangement of least peak; of several, the first in the order of the buffers."""
    search = _Search(buffers)
    search.run((0, -1))
    below: dict[str, tuple[str, ...]] = {}
    for b, at in search.best:
        under = (o.name for o, low in search.best if o.live & b.live and low + o.size == at)
        below[b.name] = tuple(under) if at else ()
    return Arrangement({b.name: at for b, at in search.best}, below, search.peak)


def least_peak(buffers: Sequence[Buffer]) -> int:
    """Return the most bytes live in one epoch: a bound that no arrangement gets below."""
    epochs = frozenset[int]().union(*(b.live for b in buffers))
    return max((sum(b.size for b in buffers if e in b.live) for e in epochs), default=0)


class _Search:
    """The arrangements with rising offsets, cut where they can't get below the best peak."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.buffers, self.fewest = buffers, least_peak(buffers)
        self.sizes = [b.size for b in buffers]
        epochs = sorted(frozenset[int]().union(*(b.live for b in buffers)))
        self.together = [[i for i, b in enumerate(buffers) if e in b.live] for e in epochs]
        self.conflicts = [[bool(a.live & b.live) for b in buffers] for a in buffers]
        self.placed: dict[int, int] = {}
        self.best: list[tuple[Buffer, int]] = []
        self.peak = sum(self.sizes) + 1

    def run(self, last: tuple[int, int]) -> None:
        """Place one more buffer in every way that may still pay; `last` = its offset and index."""
        if len(self.placed) == len(self.buffers):
            self.best = [(self.buffers[i], at) for i, at in self.placed.items()]
            self.peak = max(map(self.end, self.placed), default=0)
            return
        for i in [i for i in range(len(self.buffers)) if i not in self.placed]:
            at = max((self.end(j) for j in self.placed if self.conflicts[i][j]), default=0)
            if (at, i) >= last and self.may_pay(at):
                self.placed[i] = at
                self.run((at, i))
                del self.placed[i]

    def end(self, i: int) -> int:
        return self.placed[i] + self.sizes[i]

    def may_pay(self, at: int) -> bool:
        """Say whether the best peak may still be lowered by placing what is left from `at` on."""
        if self.peak == self.fewest:
            return False
        return all(self.height(live, at) < self.peak for live in self.together)

    def height(self, live: Sequence[int], at: int) -> int:
        """Return how high buffers live in one epoch come: what is placed now comes on top."""
        left = sum(self.sizes[i] for i in live if i not in self.placed)
        top = max((self.end(i) for i in live if i in self.placed), default=0)
        return max(top, at) + left if left else top
