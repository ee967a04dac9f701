"""Tile programs whose tensors are addressed by index tensors: run, and wrong ones refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import Dim, DType, Graph, Indexed, of_results
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.records.record import KernelRecord, load_record
from mirage_kernels.generator.request import Request
from mirage_kernels.generator.schedules.general.plan import sources
from mirage_kernels.generator.tiles import block_run
from mirage_kernels.generator.tiles.check import compare, require_same, shortened
from mirage_kernels.generator.tiles.indices import gathered, rows_of, scattered
from mirage_kernels.generator.tiles.lower import block_programs

TABLE = Indexed("table", ("M",), 0, Dim("table_rows", 50), "positions", "int64", wraps=True)
INTO = Indexed("result_0", ("M",), 0, Dim("slots_rows", 2**31 - 1, dynamic=True), "slots", "int32")


def scaled(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * table) * 2


@pytest.fixture(scope="module")
def record() -> KernelRecord:
    given = {n: torch.empty(5, 64, dtype=torch.bfloat16, device="meta") for n in ("x", "table")}
    recipe = from_torch(scaled, given, dynamic={n: {0: "M"} for n in given})
    recipe = replace(recipe, indexed=(TABLE, INTO), strided=True)
    request = Request(recipe, recipe.shapes[0], DType.BF16, "sm_90a")
    return generate(request, jobs=1, progress=lambda event: None).record


def compared(record: KernelRecord, mutant: Mapping[str, Indexed]) -> None:
    """Compare programs that are addressed like `mutant` with what the record says."""
    short, sizes = shortened(record.graph)
    own = of_results(record.indexed, record.graph.outputs)
    programs = [p.with_indices({**own, **mutant}) for p in block_programs(short, 32, 1)]
    compare(short, programs, sizes, own)


def test_rows_are_read_and_written_where_an_index_says(record: KernelRecord) -> None:
    compared(record, {})
    require_same(record.graph, 32, 1, record.indexed)


def test_another_index_tensor_is_refused(record: KernelRecord) -> None:
    with pytest.raises(PlanError):
        compared(record, {"table": replace(TABLE, by="slots")})


def test_an_index_that_is_ignored_is_refused(record: KernelRecord) -> None:
    short, sizes = shortened(record.graph)
    own = of_results(record.indexed, record.graph.outputs)
    for name in own:
        left = {n: x for n, x in own.items() if n != name}
        programs = [p.with_indices(left) for p in block_programs(short, 32, 1)]
        with pytest.raises((PlanError, ValueError)):
            compare(short, programs, sizes, own)


def test_numbers_from_the_last_row_are_told_from_none(record: KernelRecord) -> None:
    for name, one in of_results(record.indexed, record.graph.outputs).items():
        with pytest.raises(PlanError):
            compared(record, {name: replace(one, wraps=not one.wraps)})


def test_the_row_beside_is_refused(record: KernelRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    right = block_run.addressed

    def beside(own, names, places, given):  # type: ignore[no-untyped-def]
        there, at = right(own, names, places, given)
        return there, (np.maximum(at[0] - 1, 0), *at[1:])

    monkeypatch.setattr(block_run, "addressed", beside)
    with pytest.raises(PlanError):
        compared(record, {})


def test_an_index_out_of_range_says_no_row() -> None:
    given = np.array([0, 4, 5, -1, -5, -6])
    assert [*rows_of(TABLE, given, 5)] == [0, 4, -1, 4, 0, -1]
    assert [*rows_of(INTO, given, 5)] == [0, 4, -1, -1, -1, -1]


def test_no_row_reads_zeros_and_writes_nothing() -> None:
    memory, index = np.arange(6.0).reshape(3, 2), np.array([2.0, 3.0])
    assert gathered(INTO, ("M", "D"), (memory, index), (2, 2)).tolist() == [[4, 5], [0, 0]]
    written = scattered(INTO, ("M", "D"), (memory, index), np.full((2, 2), 9.0))
    assert written.tolist() == [[0, 1], [2, 3], [9, 9]]


def test_a_record_keeps_what_is_indexed(record: KernelRecord, tmp_path) -> None:
    (tmp_path / "record.json").write_text(record.text())
    assert load_record(tmp_path / "record.json").indexed == (TABLE, INTO)


def test_a_graph_knows_nothing_of_an_index(record: KernelRecord) -> None:
    graph: Graph = record.graph
    assert [n.name for n in graph.inputs] == ["x", "table"]


def test_a_dim_that_another_tensor_has_in_its_index_moves_the_pointer() -> None:
    cache = Indexed("result_0", ("H",), 1, Dim("cache_rows", 9), "place", "int64", wraps=False)

    def rotated(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * table[:, None]) * 2

    given = {
        "x": torch.empty(5, 2, 64, dtype=torch.bfloat16, device="meta"),
        "table": torch.empty(5, 64, dtype=torch.bfloat16, device="meta"),
    }
    recipe = from_torch(rotated, given, dynamic={n: {0: "M"} for n in given})
    heads = next(d for d in recipe.static_dims if recipe.shapes[0].dims[d] == 2)
    recipe = replace(recipe, indexed=(TABLE, replace(cache, dims=(heads,))), strided=True)
    request = Request(recipe, recipe.shapes[0], DType.BF16, "sm_90a")
    made = generate(request, jobs=1, progress=lambda event: None).record
    (text,) = sources([made]).values()
    stored, *_ = (x for x in text.split(";") if "auto* to" in x)
    assert re.search(r"u_index|M_at", stored), "rows of M lie apart where results are written"
    assert f"{'_strides[0]'}" in stored
