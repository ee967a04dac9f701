"""Rows that the lanes of a warp hold: which kernels have them, what is emitted, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from compilers import assembled, compiled
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import Dim, DType, Graph, Indexed, Phase, retile
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.recipe import catalog
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general.plan import sources
from mirage_kernels.generator.tiles.check import (
    compare,
    require_same,
    shortened,
    shortened_programs,
)
from mirage_kernels.generator.tiles.cuda import KernelWriter
from mirage_kernels.generator.tiles.lower import block_programs
from mirage_kernels.generator.tiles.memory import TileError
from mirage_kernels.generator.tiles.program import BlockProgram
from mirage_kernels.generator.tiles.statements import Reduce, Rows


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
        other = replace(join, op="sum" if join.is_max else "max")
        joins = (*rows.joins[:i], other, *rows.joins[i + 1 :])
        if (rows.joins[0].op, i) == ("peak", 0):
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


@pytest.fixture(scope="module", params=["static_", "rms_norm_"])
def source(request: pytest.FixtureRequest) -> str:
    """The kernel's file of a recipe whose rows are static, queries and keys and values."""
    recipe = catalog()[f"{request.param}rope_cache_write"]
    made = Request(recipe, recipe.shapes[0], DType.BF16, "sm_90a")
    (text,) = sources([generate(made, jobs=1, progress=lambda event: None).record]).values()
    return text


def test_kernels_that_read_rows_by_index_spill_nothing(source: str, tmp_path: Path) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(source)
    for kernel in assembled(file, "sm_90a", tmp_path, "--expt-relaxed-constexpr"):
        assert kernel.spill_bytes == 0
        assert kernel.registers <= 128


def test_results_of_static_rows_are_stored_as_vectors(source: str, tmp_path: Path) -> None:
    """The aligned kernel stores each of five results by one instruction, the other one by one."""
    made = compiled(source, tmp_path, "-O3", "-arch=sm_90a", "--expt-relaxed-constexpr", "-ptx")
    assert made.returncode == 0, made.stderr
    stores = re.findall(r"st\.global\.(\S+)", (tmp_path / "kernel.ptx").read_text())
    rounds = len(re.findall("each_taken<", source))
    assert {*stores} == {"v4.u32", "u16"}
    assert stores.count("v4.u32") >= 5 >= rounds


def test_rows_narrower_than_a_warp_are_joined_by_lanes_of_their_own(tmp_path: Path) -> None:
    """Eight lanes of a block with one row: others of the warp do not get there."""
    made = muGraph(norm, 64)
    (program,) = block_programs(retile(made, {a.tile_key: 1 for a in made.spaces[0].grid}), 64, 1)
    text = text_of(program)
    assert "join_lanes<Sum, 8, false>" in text
    opening = '#include "general/each.cuh"\nnamespace mirage::generated {\n'
    ran = compiled(f"{opening}{text}\n}}\n", tmp_path, "-arch=sm_90a", "-cubin")
    assert ran.returncode == 0, ran.stderr
