"""Choosing among proved muGraphs: predicted time, then accuracy, then whether a plan exists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_kernels.generator.errors import MirageError, SearchError
from mirage_kernels.generator.ir import Graph, retile
from mirage_kernels.generator.meaning.cost import Estimate, estimate
from mirage_kernels.generator.target import Target

_ROW_TILES = (16, 32, 48, 64, 96)
_DEPTH_TILES = (256, 512)
DECODE_TOKENS = 8  # the number of tokens that muGraphs are ranked for


@dataclass(frozen=True)
class Ranked:
    """A proved muGraph with its predicted time at its best tile sizes."""

    graph: Graph
    estimate: Estimate
    position: int  # in the order in which the search found it

    def line(self) -> str:
        """Return the muGraph in one line."""
        kernels = [n for n in self.graph.nodes if n.op in ("block", "contract")]
        words = " then ".join(_kernel_words(n.op, n.body) for n in kernels)
        return f"{self.estimate.microseconds:6.2f} us  {words}"


def _kernel_words(op: str, body: Graph | None) -> str:
    if op == "contract" or body is None or body.space is None:
        return "library product"
    loop = f"loop over {body.space.loop.dim}" if body.space.loop else "no loop"
    ops = [n.op for n in body.nodes if n.op not in ("input", "output", "const", "size")]
    return f"one kernel ({loop}: {', '.join(ops)})"


def rank(graphs: Sequence[Graph], on: Target) -> list[Ranked]:
    """Return the muGraphs by predicted time, fewest nodes first among equals, then as found."""
    ranked = [Ranked(g, _best_estimate(g, on), i) for i, g in enumerate(graphs)]
    return sorted(ranked, key=lambda r: (round(r.estimate.microseconds, 3), _nodes(r), r.position))


def _nodes(ranked: Ranked) -> int:
    return sum(len(n.body.nodes) if n.body else 1 for n in ranked.graph.nodes)


def _best_estimate(graph: Graph, on: Target) -> Estimate:
    sizes = {
        d.name: min(d.size, DECODE_TOKENS) if d.dynamic else d.size
        for n in graph.nodes
        for v in n.outs
        for d in v.type.dims
    }
    choices = _tile_choices(graph)
    found = (
        estimate(retile(graph, dict(zip(choices, tiles, strict=True))), sizes, on)
        for tiles in itertools.product(*choices.values())
    )
    return min(found, key=lambda e: e.microseconds)


def _tile_choices(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the tile sizes to try per dim that some block graph cuts."""
    choices: dict[str, tuple[int, ...]] = {}
    dynamic = {d.name for n in graph.nodes for v in n.outs for d in v.type.dims if d.dynamic}
    for node in graph.blocks:
        assert node.body is not None
        assert node.body.space is not None
        for axis in node.body.space.grid:
            choices[axis.dim] = (DECODE_TOKENS,) if axis.dim in dynamic else _ROW_TILES
        if node.body.space.loop is not None:
            choices[node.body.space.loop.dim] = _DEPTH_TILES
    return choices


@dataclass(frozen=True)
class Refusal:
    """A muGraph that ranked higher than the chosen one, and why it was not taken."""

    line: str
    reason: str


def choose(
    ranked: Sequence[Ranked], tests: Sequence[Callable[[Graph], object]]
) -> tuple[Ranked, list[Refusal]]:
    """Return the first muGraph that passes all tests, and those refused before it.

    Raises SearchError with the last reason when none passes.
    """
    refused: list[Refusal] = []
    for candidate in ranked:
        try:
            for test in tests:
                test(candidate.graph)
        except MirageError as error:
            refused.append(Refusal(candidate.line(), error.sentence))
            continue
        return candidate, refused
    reason = refused[-1].reason if refused else "the search found no equivalent muGraph"
    raise SearchError(
        f"none of {len(ranked)} proved muGraphs can be emitted: {reason}",
        "see the README for the programs that this version emits",
    )
