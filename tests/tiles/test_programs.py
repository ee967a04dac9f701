"""General tile programs: every form of the catalog as one, run; changed ones are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import pytest
from tiled_forms import FORMS, programs

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir import Phase
from mirage_kernels.generator.tiles.block import TileError
from mirage_kernels.generator.tiles.check import compare
from mirage_kernels.generator.tiles.program import Barrier, BlockProgram, Statement, Tile


@pytest.mark.parametrize("form", FORMS)
def test_computes_what_its_mugraph_does(form: str) -> None:
    compare(*programs(form))


def without_a_barrier(program: BlockProgram) -> Iterator[BlockProgram]:
    """Every program that has one barrier less."""
    for phase, said in program.statements.items():
        for i, s in enumerate(said):
            if isinstance(s, Barrier) and not s.cluster:
                left = (*said[:i], *said[i + 1 :])
                yield replace(program, statements={**program.statements, phase: left})


@pytest.mark.parametrize("form", ["gated_mlp", "layer_norm_linear", "gqa"])
def test_a_dropped_barrier_is_a_race(form: str) -> None:
    graph, (program,), sizes = programs(form)
    mutants = [*without_a_barrier(program)]
    assert mutants
    for mutant in mutants:
        with pytest.raises(TileError):
            compare(graph, [mutant], sizes)


def test_a_wrong_number_of_stages_is_refused() -> None:
    graph, (program,), sizes = programs("gated_mlp")
    tiles = {name: replace(t, stages=min(t.stages, 2)) for name, t in program.tiles.items()}
    with pytest.raises(MirageError):
        compare(graph, [replace(program, tiles=tiles)], sizes)


class Swapped(Tile):
    """A tile whose strides are those of its dims in the other order."""

    @cached_property
    def strides(self) -> dict[str, int]:
        """The wrong strides."""
        strides = super().strides
        return dict(zip(strides, reversed(strides.values()), strict=True))


def test_a_swapped_layout_is_refused() -> None:
    graph, (program,), sizes = programs("gated_mlp")
    tile = next(t for t in program.tiles.values() if len(t.dims) == 2)
    swapped = Swapped(tile.name, tile.dims, tile.dtype, tile.stages)
    with pytest.raises(MirageError):
        compare(graph, [replace(program, tiles={**program.tiles, tile.name: swapped})], sizes)


def test_statements_in_another_order_are_refused() -> None:
    graph, (program,), sizes = programs("gqa")
    said: list[Statement] = list(program.statements[Phase.LOOP])
    work = [i for i, s in enumerate(said) if not isinstance(s, Barrier)]
    said[work[-1]], said[work[-2]] = said[work[-2]], said[work[-1]]
    with pytest.raises(MirageError):
        compare(
            graph,
            [replace(program, statements={**program.statements, Phase.LOOP: tuple(said)})],
            sizes,
        )
