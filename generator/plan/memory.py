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

from collections.abc import Iterable, Mapping, Sequence
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
    sizes, every = [b.size for b in buffers], range(len(buffers))
    epochs = sorted(frozenset[int]().union(*(b.live for b in buffers)))
    together = [[i for i in every if e in buffers[i].live] for e in epochs]
    fewest = max((sum(sizes[i] for i in live) for live in together), default=0)  # a lower bound
    conflicts = [[i for i in every if a.live & buffers[i].live] for a in buffers]
    best, peak = dict[int, int](), sum(sizes) + 1
    placed: dict[int, int] = {}

    def end(among: Iterable[int]) -> int:
        return max((placed[i] + sizes[i] for i in among if i in placed), default=0)

    def may_pay(at: int) -> bool:
        """Say whether the best peak may still be lowered by placing what is left from `at` on."""
        for live in together:
            left = sum(sizes[i] for i in live if i not in placed)
            if (max(end(live), at) + left if left else end(live)) >= peak:
                return False
        return True

    def place(last: tuple[int, int]) -> None:
        """Place one more buffer in every way that may pay; `last`: where the one before lies."""
        nonlocal best, peak
        if len(placed) == len(buffers):
            best, peak = dict(placed), end(placed)
        for i in (i for i in every if i not in placed):
            at = end(conflicts[i])
            if peak != fewest and (at, i) >= last and may_pay(at):
                placed[i] = at
                place((at, i))
                del placed[i]

    place((0, -1))
    below = {
        buffers[i].name: tuple(
            buffers[j].name for j in best if at and j in conflicts[i] and best[j] + sizes[j] == at
        )
        for i, at in best.items()
    }
    return Arrangement({buffers[i].name: at for i, at in best.items()}, below, peak)
