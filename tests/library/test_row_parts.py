"""Products of one tensor by several weights, in one launch: results on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from cut_functions import TYPES, compiled, program_of, require_right, taken
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.partition.program import Program

K = 2048
PARTS = (160, 96, 72)  # none but the first in whole tiles of any schedule
ROWS = (0, 1, 5, 8, 13, 16, 17, 32, 40, 64, 65)
Run = Callable[..., tuple[Tensor, ...]]


def normed(x: Tensor, n: Tensor, w0: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, ...]:
    y = F.rms_norm(x, (K,), n, 1e-5)
    return F.linear(y, w0), F.linear(y, w1), F.linear(y, w2)


def biased(
    x: Tensor, w0: Tensor, w1: Tensor, w2: Tensor, b0: Tensor, b1: Tensor, b2: Tensor
) -> tuple[Tensor, ...]:
    return F.linear(x, w0, b0), F.linear(x, w1, b1), F.linear(x, w2, b2)


def shapes_of(run: Run, rows: int) -> dict[str, tuple[int, ...]]:
    """The extents of a function's tensors."""
    known = {"x": (rows, K), "n": (K,)}
    known |= {f"w{i}": (length, K) for i, length in enumerate(PARTS)}
    known |= {f"b{i}": (length,) for i, length in enumerate(PARTS)}
    return taken(run, known)


@cache
def cut(run: Run, dtype: str) -> Program:
    """The program of a function."""
    name = f"{run.__name__}_{dtype}"
    return program_of(run, name, dtype, shapes_of(run, 8), ("x",))


@pytest.mark.parametrize(
    ("run", "dtype", "schedules"),
    [
        (normed, "bf16", {"sliced_k", "register_operand"}),
        (normed, "fp16", {"sliced_k", "cluster_split_k"}),
        (biased, "bf16", {"sliced_k", "register_operand"}),
    ],
    ids=["normed-bf16", "normed-fp16", "biased-bf16"],
)
class TestOneLaunch:
    """Kernels of several parts."""

    def test_schedules_are_those_of_one_weight(
        self, run: Run, dtype: str, schedules: set[str]
    ) -> None:
        (record,) = (r.record for r in cut(run, dtype).results if r.record.row_parts)
        assert record.row_parts == PARTS
        assert {v.schedule for v in record.variants} == schedules

    @pytest.mark.gpu
    def test_results_are_right(
        self, run: Run, dtype: str, schedules: set[str], tmp_path: Path
    ) -> None:
        program = compiled(cut(run, dtype), tmp_path)
        for rows in ROWS:
            generator = torch.Generator().manual_seed(rows)
            given = {
                name: torch.randn(shape, generator=generator).to(TYPES[dtype]).cuda()
                for name, shape in shapes_of(run, rows).items()
            }
            made = require_right(program, run, given, dtype)
            assert all(mine.is_contiguous() for mine in made)
            if run is biased:  # whole numbers that fp32 sums up exactly
                whole = {n: torch.randint_like(x, -2, 3) for n, x in given.items()}
                wanted = run(**{name: x.double() for name, x in whole.items()})
                for mine, one in zip(program(**whole), wanted, strict=True):
                    assert torch.equal(mine, one.to(mine.dtype))
