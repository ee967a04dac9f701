"""Formulas of products in registers: where they are computed there, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tiled_forms import programs

from mirage_kernels.generator.errors import MirageError
from mirage_kernels.generator.ir import Graph, Phase
from mirage_kernels.generator.tiles.check import compare
from mirage_kernels.generator.tiles.memory import TileError
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import Apply, JoinRows, Reduce, Spill, Statement

Change = Callable[[Statement], Statement]


@pytest.fixture(scope="module")
def attention() -> tuple[Graph, BlockProgram, dict[str, int]]:
    graph, (program,), sizes = programs("gqa")
    return graph, program, sizes


def of(program: BlockProgram, kind: type[Statement]) -> list[Statement]:
    return [s for s in program.statements[Phase.LOOP] if isinstance(s, kind)]


def changed(program: BlockProgram, change: Change) -> BlockProgram:
    loop = tuple(map(change, program.statements[Phase.LOOP]))
    return replace(program, statements={**program.statements, Phase.LOOP: loop})


def test_scores_have_no_tile(attention: tuple[Graph, BlockProgram, dict[str, int]]) -> None:
    graph, program, sizes = attention
    (applied,) = of(program, Apply)
    assert isinstance(applied, Apply)
    assert applied.fragment not in program.tiles
    assert [s.join.op for s in of(program, JoinRows) if isinstance(s, JoinRows)] == ["peak", "sum"]
    compare(graph, [program], sizes)


def test_what_is_read_elsewhere_keeps_its_tile() -> None:
    _, (program,), _ = programs("gated_mlp")
    spilled = [s.fragment for s in program.statements[Phase.AFTER] if isinstance(s, Spill)]
    assert spilled
    assert {*spilled} <= {*program.tiles}
    assert not of(program, JoinRows)


def of_scores(s: Statement) -> Statement:
    return replace(s, held=s.fragment) if isinstance(s, JoinRows) and s.join.op == "sum" else s


def as_peak(s: Statement) -> Statement:
    return replace(s, join=replace(s.join, op="peak")) if isinstance(s, JoinRows) else s


@pytest.mark.parametrize("change", [of_scores, as_peak])
def test_wrong_joins_are_refused(
    attention: tuple[Graph, BlockProgram, dict[str, int]], change: Change
) -> None:
    graph, program, sizes = attention
    with pytest.raises(MirageError):
        compare(graph, [changed(program, change)], sizes)


def test_shares_of_warps_are_awaited(
    attention: tuple[Graph, BlockProgram, dict[str, int]],
) -> None:
    graph, program, sizes = attention
    loop = program.statements[Phase.LOOP]
    joins = [i for i, s in enumerate(loop) if isinstance(s, Reduce) and s.parts]
    assert len(joins) == 2
    for i in joins:
        said = {**program.statements, Phase.LOOP: (*loop[: i - 1], *loop[i:])}
        with pytest.raises(TileError):
            compare(graph, [replace(program, statements=said)], sizes)
