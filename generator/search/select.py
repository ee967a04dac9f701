"""Choosing among proved muGraphs: predicted time, then accuracy, then whether a plan exists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from mirage_kernels.generator.errors import MirageError, SearchError, ToolchainError
from mirage_kernels.generator.ir import Graph, retile
from mirage_kernels.generator.meaning.cost import Estimate, contiguous_dims, estimate
from mirage_kernels.generator.search.cases import batch_dims
from mirage_kernels.generator.search.extract import FEW, nominal_sizes
from mirage_kernels.generator.search.gate import Gate
from mirage_kernels.generator.search.lower import Goal, lower
from mirage_kernels.generator.search.problem import LARGEST_TILE
from mirage_kernels.generator.search.sketch import Counts, ProgramSketch
from mirage_kernels.generator.search.stabilise import stabilise
from mirage_kernels.generator.target import Target

_ROW_TILES = (16, 32, 64)
_LOOP_TILES = (64, 256, 512)
_PART_TILES = (256, 512, 1024)


@dataclass(frozen=True)
class Ranked:
    """A proved muGraph with its predicted time at its best tile sizes."""

    graph: Graph
    estimate: Estimate
    position: int  # in the order in which the search found it

    def line(self) -> str:
        """Return the muGraph in one line; general kernels choose tiles that find room."""
        words = []
        for node in (n for n in self.graph.nodes if n.op in ("block", "contract")):
            body = node.body
            if body is None or body.space is None:
                words.append("library product")
                continue
            loop = f"loop over {body.space.loop.dim}" if body.space.loop else "no loop"
            ops = [n.op for n in body.nodes if n.op not in ("input", "output", "const", "size")]
            words.append(f"one kernel ({loop}: {', '.join(ops)})")
        us = self.estimate.microseconds
        time = f"{us:6.2f} us" if isfinite(us) else "at smaller tiles"
        return f"{time}  {' then '.join(words)}"


@dataclass(frozen=True)
class Candidates:
    """Proved muGraphs, fastest first, with their gate; what the search counted and proved."""

    gate: Gate
    ranked: Sequence[Ranked]
    counts: Counts
    proved: int


def mugraphs(programs: Sequence[ProgramSketch], goal: Goal) -> list[Graph]:
    """Return what a search found as muGraphs of a goal, exponentials made safe."""
    return [stabilise(lower(program, goal), goal.storage) for program in programs]


def rank(graphs: Sequence[Graph], spec: Graph, on: Target) -> list[Ranked]:
    """Return the muGraphs by predicted time, fewest nodes first among equals, then as found.

    Each comes with the tile sizes that it was predicted for.
    """
    sizes, alike = nominal_sizes(spec), batch_dims(spec)

    def ranked(position: int, graph: Graph) -> Ranked:
        choices = tile_choices(graph, sizes, alike)
        every = (dict(zip(choices, t, strict=True)) for t in itertools.product(*choices.values()))
        tiled = (retile(graph, tiles) for tiles in every)
        estimates = ((estimate(made, sizes, on), made) for made in tiled)
        best, made = min(estimates, key=lambda pair: pair[0].microseconds)
        return Ranked(made, best, position)

    def order(one: Ranked) -> tuple[float, int, int]:
        nodes = sum(len(n.body.nodes) if n.body else 1 for n in one.graph.nodes)
        return round(one.estimate.microseconds, 3), nodes, one.position

    return sorted(itertools.starmap(ranked, enumerate(graphs)), key=order)


def tile_choices(
    graph: Graph, sizes: Mapping[str, int], alike: frozenset[str]
) -> dict[str, tuple[int, ...]]:
    """Return the tile sizes to try, by `Axis.tile_key`; dims in `alike` are cut into single items.

    So may be rows: dims that no product and no contiguous access of a kernel is along. A dim that
    is shorter than the smallest choice stays whole, and so may one that some product lacks: each of
    its tiles makes that product anew.
    """
    choices: dict[str, tuple[int, ...]] = {}
    dynamic = {d.name for n in graph.nodes for v in n.outs for d in v.type.dims if d.dynamic}
    for body, space in ((n.body, n.body.space) for n in graph.blocks if n.body and n.body.space):
        rows = {a.dim for a in space.axes} - contiguous_dims(body)
        lacking = {a.dim for a in space.grid} - _of_all_products(body)
        for axis in space.axes:
            wanted: tuple[int, ...] = (FEW,) if axis.dim in dynamic else _ROW_TILES
            if axis is space.loop:
                wanted = _LOOP_TILES
            elif axis.reduced:
                wanted = _PART_TILES
            elif axis.dim in alike:
                wanted = (1,)
            if axis.dim in rows and 1 not in wanted:
                wanted = (1, *wanted)
            size = sizes.get(axis.dim, axis.tile)
            if axis.dim in lacking and wanted is _ROW_TILES and size <= LARGEST_TILE:
                wanted = (*wanted, size)
            choices[axis.tile_key] = tuple(t for t in wanted if t <= size) or (size,)
    return choices


def _of_all_products(block: Graph) -> set[str]:
    """Return the dims that every product of a block has."""
    products = [
        {d for a in n.args for d in block.values[a].type.names} for n in block.of("contract")
    ]
    return set.intersection(*products) if products else set()


@dataclass(frozen=True)
class Refusal:
    """A muGraph that ranked higher than the chosen one, and why it was not taken."""

    line: str
    reason: str


def choose(
    ranked: Sequence[Ranked], tests: Sequence[Callable[[Graph], object]]
) -> tuple[Ranked, list[Refusal]]:
    """Return the first muGraph that passes all tests, and those refused before it.

    Raises SearchError with the last reason when none passes, ToolchainError where a test lacks a
    tool.
    """
    refused: list[Refusal] = []
    reason = "the search found no equivalent muGraph"
    for candidate in ranked:
        try:
            for test in tests:
                test(candidate.graph)
        except ToolchainError:
            raise
        except MirageError as error:
            reason = error.sentence
            refused.append(Refusal(candidate.line(), reason))
            continue
        return candidate, refused
    raise SearchError(
        f"none of {len(ranked)} proved muGraphs can be emitted: {reason}",
        "see the README for the programs that this version emits",
    )
