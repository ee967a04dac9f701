"""Rows that the lanes of a warp hold: which kernels have them, what is emitted, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import Dim, DType, Graph, Indexed, Phase
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.tiles.check import (
    compare,
    require_same,
    shortened,
    shortened_programs,
)
from mirage_kernels.generator.tiles.cuda import KernelWriter
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.memory import TileError
from mirage_kernels.generator.tiles.program import BlockProgram, Reduce, Rows


def norm(x: Tensor) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def muGraph(run: Callable[[Tensor], Tensor], columns: int) -> Graph:  # noqa: N802
    given = {"x": torch.empty(4, columns, dtype=torch.bfloat16, device="meta")}
    recipe = from_torch(run, given, dynamic={"x": {0: "M"}})
    request = Request(replace(recipe, strided=True), recipe.shapes[0], DType.BF16)
    return generate(request, jobs=1, progress=lambda event: None).record.graph


@pytest.fixture(scope="module", params=[norm, layer_norm, softmax])
def graph(request: pytest.FixtureRequest) -> Graph:
    return muGraph(request.param, 64)


def tiled(graph: Graph) -> tuple[Graph, BlockProgram, dict[str, int]]:
    short, sizes = shortened(graph)
    (program,) = block_programs(short, 64, 1)
    return short, program, sizes


def rows_of(program: BlockProgram) -> Rows:
    (rows,) = program.statements[Phase.BEFORE]
    assert isinstance(rows, Rows)
    return rows


def changed(program: BlockProgram, rows: Rows) -> BlockProgram:
    return replace(program, statements={**program.statements, Phase.BEFORE: (rows,)})


def text_of(program: BlockProgram) -> str:
    return "\n".join(KernelWriter(program, "it", DType.BF16).text())


def test_short_rows_are_held_without_shared_memory(graph: Graph) -> None:
    _, program, _ = tiled(graph)
    assert not program.tiles
    assert program.held
    assert rows_of(program).lanes == 8


def test_programs_that_hold_rows_do_what_their_mugraph_does(graph: Graph) -> None:
    for threads in (32, 64, 256):
        require_same(graph, threads, 1)


def test_what_is_read_is_read_once_and_no_thread_waits_at_a_barrier(graph: Graph) -> None:
    _, program, _ = tiled(graph)
    text = text_of(program)
    assert text.count("read_within<8, kAligned>") == 1
    assert text.count("write_within<8, kAligned>") == 1
    assert text.count("join_lanes<") == len(rows_of(program).joins)
    assert "__syncthreads" not in text


@pytest.mark.parametrize("columns", [72, 200, 256])
def test_lanes_beyond_a_row_add_nothing(columns: int) -> None:
    made = muGraph(softmax, columns)
    require_same(made, 64, 1)
    (program,) = block_programs(made, 64, 1)
    assert rows_of(program).lanes == {72: 16, 200: 32, 256: 32}[columns]
    tests = re.findall(rf"if \(\w+_at < {columns}\)", text_of(program))
    assert len(tests) == (0 if columns == 256 else 2)  # of the peak, and of the sum


@pytest.mark.parametrize("columns", [60, 512])
def test_rows_of_no_whole_vectors_or_too_many_have_tiles(columns: int) -> None:
    made = muGraph(softmax, columns)
    assert not any(p.held for p in block_programs(made, 64, 1))
    (short,) = shortened_programs(made, 64, 1)[1]
    assert not short.held


@pytest.mark.parametrize("lanes", [4, 12, 64])
def test_lanes_that_do_not_hold_a_row_are_refused(graph: Graph, lanes: int) -> None:
    short, program, sizes = tiled(graph)
    mutant = changed(program, replace(rows_of(program), lanes=lanes))
    with pytest.raises(TileError, match=f"no {lanes} lanes of a warp hold a row of 64 elements"):
        compare(short, [mutant], sizes)


def test_a_join_of_another_kind_is_refused(graph: Graph) -> None:
    short, program, sizes = tiled(graph)
    rows = rows_of(program)
    for i, join in enumerate(rows.joins):
        other = replace(join, op="sum" if join.op == "max" else "max")
        joins = (*rows.joins[:i], other, *rows.joins[i + 1 :])
        if (rows.joins[0].op, i) == ("max", 0):
            continue  # any number of a row's size may stand for its peak
        with pytest.raises(PlanError):
            compare(short, [changed(program, replace(rows, joins=joins))], sizes)


def test_a_join_behind_what_takes_it_is_refused() -> None:
    short, program, sizes = tiled(muGraph(layer_norm, 64))
    rows = rows_of(program)
    assert len(rows.joins) == 2
    with pytest.raises(TileError, match="is read before rows are joined to it"):
        compare(short, [changed(program, replace(rows, joins=rows.joins[::-1]))], sizes)


def test_rows_whose_elements_lie_anywhere_are_not_held(graph: Graph) -> None:
    short, program, _ = tiled(graph)
    (over,) = {j.over for j in rows_of(program).joins}
    index = Indexed("x", (over,), 0, Dim("rows", 9, dynamic=True), "index", "int64")
    (scattered,) = block_programs(short, 64, 1, {"x": index})
    assert not scattered.held
    assert any(isinstance(s, Reduce) for s in scattered.statements[Phase.BEFORE])
