"""Products whose rows are scaled by a number each: one kernel, and results on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from cut_functions import TYPES, compiled, program_of, require_blocks, require_right, taken
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.partition.program import Program

ROWS = (0, 1, 5, 8, 16, 17, 32, 40, 64, 65)
Run = Callable[..., Tensor]


def weighted(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w) * s[:, None]


def gated(x: Tensor, w: Tensor, r: Tensor, t: Tensor) -> Tensor:
    return r + F.linear(x, w) * torch.sigmoid(t)


def scaled_first(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
    return F.silu(F.linear(x * t, w))


def expert(x: Tensor, w: Tensor, v: Tensor, s: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v) * s[:, None]


def of_columns(x: Tensor, u: Tensor, s: Tensor) -> Tensor:
    return (x @ u) * s[:, None]


CASES: list[tuple[Run, str, int, int]] = [
    (weighted, "bf16", 2048, 1024),
    (gated, "fp16", 4096, 4096),
    (scaled_first, "bf16", 4096, 6144),
    (expert, "fp16", 4096, 14336),
    (of_columns, "bf16", 2048, 3000),
]


def shapes_of(run: Run, rows: int, k: int, n: int) -> dict[str, tuple[int, ...]]:
    """The extents of a function's tensors."""
    known = {"x": (rows, k), "r": (rows, n), "s": (rows,), "t": (rows, 1)}
    known |= {"w": (n, k), "v": (n, k), "u": (k, n)}
    return taken(run, known)


@cache
def cut(run: Run, dtype: str, k: int, n: int) -> Program:
    """The program of a function."""
    name = f"{run.__name__}_rows_{dtype}_{k}"
    return program_of(run, name, dtype, shapes_of(run, 8, k, n), ("x", "r", "s", "t"))


@pytest.mark.parametrize(("run", "dtype", "k", "n"), CASES)
class TestTokenNumbers:
    """Kernels of functions that scale rows of a product."""

    def test_a_fast_schedule_reads_them_behind_the_product(
        self, run: Run, dtype: str, k: int, n: int
    ) -> None:
        program = cut(run, dtype, k, n)
        assert ["kernel" in step for step in program.ways[0].steps] == [True]
        record = program.results[0].record
        assert "general" not in {v.schedule for v in record.variants}
        require_blocks(record)

    @pytest.mark.gpu
    def test_results_are_right(self, run: Run, dtype: str, k: int, n: int, tmp_path: Path) -> None:
        kernels = compiled(cut(run, dtype, k, n), tmp_path)
        for rows in ROWS:
            generator = torch.Generator().manual_seed(rows)

            def drawn(*shape: int, of: torch.Generator = generator) -> Tensor:
                return (torch.randn(shape, generator=of) / 16).to(TYPES[dtype]).cuda()

            shapes = shapes_of(run, rows, k, n)
            given = {name: drawn(*shape) for name, shape in shapes.items()}
            for name in {"s", "t"} & {*given}:  # a column of a wider tensor
                wide = drawn(rows, 5)[:, 2]
                given[name] = wide if name == "s" else wide[:, None]
            require_right(kernels, run, given, dtype)
