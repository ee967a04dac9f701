"""Shared-memory offsets: the arrangement of buffers with the smallest peak, exactly.

Time is counted in epochs, the stretches between two barriers of the block: within one, nothing says
which thread is where, so that two buffers may share bytes only if no epoch needs both. A value that
a loop carries and a ring of stages are live in every epoch of the loop.

This is dynamic storage allocation. In a packing pushed down as far as it goes, every buffer lies at
0 or on top of another that it conflicts with; taken in order of offset, each lies on top of all
earlier ones that it conflicts with. So an order is all there is to choose: the search below walks
orders of rising offsets and cuts those that cannot get below the best peak so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ALIGNMENT = 16  # bytes: what a 16-byte copy or access asks for (PTX ISA, cp.async, ld.v4)


@dataclass(frozen=True)
class Buffer:
    """Bytes of shared memory that hold a value during some epochs."""

    name: str
    bytes: int
    live: frozenset[int]


@dataclass(frozen=True)
class Arrangement:
    """Where each buffer lies: bytes from the start, and the buffers directly below it.

    An offset is the highest end of the buffers below, or 0: so a template whose sizes are still
    open may write down the arrangement without numbers, and it stays one for any sizes.
    """

    offsets: Mapping[str, int]  # in the order of placement
    below: Mapping[str, tuple[str, ...]]
    peak: int


@dataclass
class _Search:
    buffers: Sequence[Buffer]
    sizes: Sequence[int]
    fewest: int  # no arrangement gets below
    best: Arrangement | None = None
    placed: dict[int, int] = field(default_factory=dict)
    together: list[list[int]] = field(init=False)  # the buffers of each epoch

    def __post_init__(self) -> None:
        epochs = _epochs(self.buffers)
        self.together = [[i for i, b in enumerate(self.buffers) if e in b.live] for e in epochs]

    def run(self, last: tuple[int, int]) -> None:
        """Place one more buffer in every way that may still pay; `last` = its offset and index."""
        if len(self.placed) == len(self.buffers):
            self.best = self.arrangement()
            return
        for i in range(len(self.buffers)):
            if i in self.placed:
                continue
            at = self.offset(i)
            if (at, i) >= last and self.may_pay(at):
                self.placed[i] = at
                self.run((at, i))
                del self.placed[i]

    def may_pay(self, at: int) -> bool:
        """Say whether the best peak may still be lowered by placing what is left from `at` on."""
        if self.best is None:
            return True
        if self.best.peak == self.fewest:
            return False
        return all(self.height(live, at) < self.best.peak for live in self.together)

    def height(self, live: Sequence[int], at: int) -> int:
        """Return how high buffers live in one epoch come: what is placed now comes on top."""
        left = sum(self.sizes[i] for i in live if i not in self.placed)
        top = max((self.end(i) for i in live if i in self.placed), default=0)
        return max(top, at) + left if left else top

    def end(self, i: int) -> int:
        return self.placed[i] + self.sizes[i]

    def under(self, i: int) -> list[int]:
        return [j for j in self.placed if self.buffers[i].live & self.buffers[j].live]

    def offset(self, i: int) -> int:
        return max((self.end(j) for j in self.under(i)), default=0)

    def arrangement(self) -> Arrangement:
        offsets = {self.buffers[i].name: at for i, at in self.placed.items()}
        below = {}
        for i, at in self.placed.items():
            ends = [j for j in self.placed if self._conflict(i, j) and self.end(j) == at and at]
            below[self.buffers[i].name] = tuple(self.buffers[j].name for j in ends)
        return Arrangement(offsets, below, max(map(self.end, self.placed), default=0))

    def _conflict(self, i: int, j: int) -> bool:
        return i != j and bool(self.buffers[i].live & self.buffers[j].live)


def arrange(buffers: Sequence[Buffer], *, alignment: int = ALIGNMENT) -> Arrangement:
    """Return an arrangement of least peak; of several, the first in the order of the buffers."""
    sizes = [_rounded(b.bytes, alignment) for b in buffers]
    search = _Search(buffers, sizes, least_peak(buffers, alignment=alignment))
    search.run((0, -1))
    assert search.best is not None
    return search.best


def side_by_side(buffers: Sequence[Buffer], *, alignment: int = ALIGNMENT) -> Arrangement:
    """Return the arrangement that shares no bytes: what there is without a plan."""
    offsets, below, end = {}, {}, 0
    for i, b in enumerate(buffers):
        offsets[b.name] = end
        below[b.name] = (buffers[i - 1].name,) if i else ()
        end += _rounded(b.bytes, alignment)
    return Arrangement(offsets, below, end)


def least_peak(buffers: Sequence[Buffer], *, alignment: int = ALIGNMENT) -> int:
    """Return the most bytes live in one epoch: a bound that no arrangement gets below."""
    return max(
        (
            sum(_rounded(b.bytes, alignment) for b in buffers if epoch in b.live)
            for epoch in _epochs(buffers)
        ),
        default=0,
    )


def _epochs(buffers: Sequence[Buffer]) -> list[int]:
    return sorted(frozenset[int]().union(*(b.live for b in buffers)))


def _rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
