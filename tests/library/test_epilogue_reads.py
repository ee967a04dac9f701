"""What fast schedules read behind a product, as numbers per token and fp32 scales, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_functions import (
    TYPES,
    compiled,
    drawn_at,
    only_kernel,
    program_of,
    require_blocks,
    require_right,
    taken,
)
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.partition.program import Program

ROWS = (0, 1, 5, 8, 16, 17, 32, 40, 64, 65)
Run = Callable[..., Any]


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


def biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (F.linear(x, w).float() + b).to(x.dtype)


def normed(x: Tensor, n: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (F.linear(F.rms_norm(x, x.shape[-1:], n, 1e-5), w).float() * b).to(x.dtype)


def added(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return (F.linear(x, w).float() + y).to(x.dtype)


def quantized(x: Tensor, q: Tensor, b: Tensor, a: Tensor) -> Tensor:
    return (F.linear(x, q.to(x.dtype)).float() * b * a[:, None]).to(x.dtype)


def of_one_scale(x: Tensor, q: Tensor, o: Tensor) -> Tensor:
    return F.linear(x, (q.float() * o).to(x.dtype))


def of_scales(x: Tensor, q: Tensor, o: Tensor, p: Tensor, i: Tensor) -> Any:
    first, second = ((w.float() * s).to(x.dtype) for w, s in ((q, o), (p, i)))
    return F.linear(x, first), F.linear(x, second)


CASES: list[tuple[Run, str, int, int]] = [
    (weighted, "bf16", 2048, 1024),
    (gated, "fp16", 4096, 4096),
    (scaled_first, "bf16", 4096, 6144),
    (expert, "fp16", 4096, 14336),
    (of_columns, "bf16", 2048, 3000),
    (biased, "bf16", 4096, 4096),
    (normed, "fp16", 4096, 6144),
    (added, "fp16", 2048, 3000),
    (quantized, "bf16", 4096, 4096),
    (of_one_scale, "fp16", 2048, 3000),
    (of_scales, "bf16", 2048, 3000),
]


def shapes_of(run: Run, rows: int, k: int, n: int) -> dict[str, tuple[int, ...]]:
    """The extents of a function's tensors."""
    known = {"x": (rows, k), "r": (rows, n), "s": (rows,), "t": (rows, 1)}
    known |= {"w": (n, k), "v": (n, k), "u": (k, n), "n": (k,)}
    known |= {"q": (n, k), "b": (n,), "a": (rows,), "y": (rows, n), "o": (1,)}
    known |= {"p": (n, k), "i": (1,)}
    return taken(run, known)


def type_of(name: str, dtype: str) -> torch.dtype:
    """The type of a tensor: that of the kernel, unless it has one of its own."""
    own = dict.fromkeys("bayoi", torch.float32) | dict.fromkeys("qp", torch.float8_e4m3fn)
    return own.get(name, TYPES[dtype])


@cache
def cut(run: Run, dtype: str, k: int, n: int) -> Program:
    """The program of a function."""
    name = f"{run.__name__}_rows_{dtype}_{k}"
    shapes = shapes_of(run, 8, k, n)
    types = {name: type_of(name, dtype) for name in shapes}
    return program_of(run, name, dtype, shapes, ("x", "r", "s", "t", "a", "y"), types=types)


@pytest.mark.parametrize(("run", "dtype", "k", "n"), CASES)
class TestEpilogueReads:
    """Kernels of functions that scale a product's results, or add to them."""

    def test_a_fast_schedule_reads_them_behind_the_product(
        self, run: Run, dtype: str, k: int, n: int
    ) -> None:
        record = only_kernel(cut(run, dtype, k, n))
        assert "general" not in {v.schedule for v in record.variants}
        require_blocks(record)

    @pytest.mark.gpu
    def test_results_are_right(self, run: Run, dtype: str, k: int, n: int, tmp_path: Path) -> None:
        kernels = compiled(cut(run, dtype, k, n), tmp_path)
        for rows in ROWS:
            shapes = shapes_of(run, rows, k, n)
            columns = {"s", "t", "a"} & {*shapes}  # of wider tensors
            shapes |= dict.fromkeys(columns, (rows, 5))
            given = drawn_at(rows, shapes, lambda name: type_of(name, dtype))
            for name in columns:
                given[name] = given[name][:, 2:3] if name == "t" else given[name][:, 2]
            require_right(kernels, run, given, dtype)
