"""Where kernels write results: into parts of a tensor that joins several, without a `cat`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_kernels.generator.partition.pieces import extents, is_cat, joined_dim, ranges, shape_of
from mirage_kernels.generator.partition.trace import Node, Trace, base_of, mutates

Step = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """A part of a joined tensor: its range along the dim that is joined."""

    whole: Node
    dim: int
    start: int
    end: int

    def strides(self, whole: Node) -> tuple[int, ...]:
        """Return the strides of the part, at the extents that a trace's node has."""
        import torch

        made = torch.empty(shape_of(whole), device="meta")
        return made.narrow(self.dim, self.start, self.end - self.start).stride()

    def data(self, trace: Trace) -> Step:
        """Return the place as data."""
        return {
            "value": trace.name(self.whole),
            "shape": trace.shape(self.whole),
            "dim": self.dim,
            "start": self.start,
            "size": self.end - self.start,
        }


def places_of(trace: Trace, made: Mapping[Node, int], at: Mapping[Node, int]) -> dict[Node, Place]:
    """Return where kernels write: pieces by their nodes.

    `made` says which part of a program is the kernel that makes a value, `at` which part joins.
    """
    taken: dict[Node, Place] = {}
    changed = {base_of(trace, n.all_input_nodes[0]) for n in trace.nodes if mutates(n)}
    results = {base_of(trace, n) for n in trace.results}
    for cat in at:
        if not is_cat(cat) or extents(cat) != extents(trace.pairs[cat]) or cat in changed:
            continue
        for piece, place in pieces(cat):
            own = piece.meta["val"].dtype is trace.dtype and piece not in {*taken, *changed}
            if own and piece not in results and made.get(piece, at[cat]) < at[cat]:
                taken[piece] = place
    return taken


def pieces(cat: Node) -> Iterator[tuple[Node, Place]]:
    """Yield what a cat joins, and where it goes."""
    dim = joined_dim(cat) + len(shape_of(cat))
    for piece, (start, end) in zip(cat.args[0], ranges(extents(cat)), strict=True):
        yield piece, Place(cat, dim, start, end)


def join_step(trace: Trace, cat: Node, written: Sequence[Node]) -> Step:
    """Return the step of a cat of which kernels have written some parts."""
    left = [(p, place) for p, place in pieces(cat) if p not in written]
    return {
        "join": trace.name(cat),
        "copies": [place.data(trace) | {"piece": trace.name(p)} for p, place in left],
    }
