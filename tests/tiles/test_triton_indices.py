"""Triton programs of tensors that index tensors address, in Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported: they run in a process of their own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mirage_kernels.generator.bench.demonstrate import interpreted, loaded
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import Dim, DType, Indexed
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.request import Request

ROWS, SLOTS, DEPTH = 9, 12, 32
TABLE = Indexed("table", ("M",), 0, Dim("table_rows", ROWS), "positions", "int64", wraps=True)
INTO = Indexed("result_0", ("M",), 0, Dim("slots_rows", SLOTS, dynamic=True), "slots", "int32")


def scaled(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * table) * 2


def main(path: Path) -> None:
    """Run a program on tensors of which some elements have no row."""
    module = loaded(path)
    drawn = torch.Generator().manual_seed(0)
    x, table, cache = (torch.randn(n, DEPTH, generator=drawn).half() for n in (5, ROWS, SLOTS))
    positions = torch.tensor([3, -1, ROWS, 0, 8])
    slots = torch.tensor([4, 11, 0, SLOTS, -1], dtype=torch.int32)
    wanted = cache.clone()
    read = torch.stack([table[3], table[8], torch.zeros(DEPTH).half()])
    wanted[[4, 11, 0]] = scaled(x[:3].float(), read.float()).half()
    made = module.scaled(x, table, positions, slots, cache)
    assert made is cache
    torch.testing.assert_close(cache, wanted, atol=2e-3, rtol=2e-3)


def test_rows_are_read_and_written_where_an_index_says(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    given = {n: torch.empty(5, DEPTH, dtype=torch.float16, device="meta") for n in ("x", "table")}
    recipe = from_torch(scaled, given, dynamic={n: {0: "M"} for n in given})
    recipe = replace(recipe, indexed=(TABLE, INTO), strided=True)
    request = Request(recipe, recipe.shapes[0], DType.FP16, "sm_90a")
    files = generate(request, jobs=1, progress=lambda event: None).files
    (text,) = (text for name, text in files.items() if name.endswith("triton.py"))
    path = tmp_path / "program.py"
    path.write_text(text)
    interpreted(main, path)
