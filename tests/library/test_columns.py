"""Products by [K, N] weights, whose rows lie side by side: the schedule, and results on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

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

from mirage_kernels.generator.errors import PlanError
from mirage_kernels.generator.partition.program import Program
from mirage_kernels.generator.plan.lower import lowered, tile_program
from mirage_kernels.generator.schedules.choose import buckets, variants
from mirage_kernels.generator.target import target

ROWS = (0, 1, 5, 8, 16, 17, 32, 40, 64, 65)
Run = Callable[..., Tensor]


def biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(torch.addmm(b, x, w))


def gated(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(x @ w) * (x @ v)


def normed(x: Tensor, n: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], n, 1e-5) @ w


def added(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
    return r + x @ w


def both(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    return (x @ w) * F.linear(x, u)


CASES: list[tuple[Run, str, int, int]] = [
    (biased, "bf16", 2048, 3000),  # no whole tiles
    (gated, "bf16", 1024, 4096),
    (gated, "fp16", 2048, 1056),
    (normed, "fp16", 4096, 2048),
    (added, "fp16", 2048, 6144),
    (both, "bf16", 2048, 2048),
]


def shapes_of(run: Run, rows: int, k: int, n: int) -> dict[str, tuple[int, ...]]:
    """The extents of a function's tensors."""
    known = {"x": (rows, k), "r": (rows, n), "n": (k,), "b": (n,)}
    known |= {"w": (k, n), "v": (k, n), "u": (n, k)}
    return taken(run, known)


@cache
def cut(run: Run, dtype: str, k: int, n: int) -> Program:
    """The program of a function."""
    name = f"{run.__name__}_{dtype}_{k}"
    return program_of(run, name, dtype, shapes_of(run, 8, k, n), ("x", "r"))


@pytest.mark.parametrize(("run", "dtype", "k", "n"), CASES)
class TestColumns:
    """Kernels of functions that multiply by [K, N] weights."""

    def test_up_to_64_rows_they_are_one_kernel_of_register_operands(
        self, run: Run, dtype: str, k: int, n: int
    ) -> None:
        record = only_kernel(cut(run, dtype, k, n))
        assert {v.schedule for v in record.variants} == {"register_operand"}
        assert all(v.knobs.rows % 32 == 0 for v in record.variants)
        assert lowered(record.recipe, record.graph).columns

    def test_a_block_computes_what_the_mugraph_does(
        self, run: Run, dtype: str, k: int, n: int
    ) -> None:
        record = cut(run, dtype, k, n).results[0].record
        require_blocks(record)

    @pytest.mark.gpu
    def test_results_are_right(self, run: Run, dtype: str, k: int, n: int, tmp_path: Path) -> None:
        kernels = compiled(cut(run, dtype, k, n), tmp_path)
        for rows in ROWS:
            given = drawn_at(rows, shapes_of(run, rows, k, n), lambda name: TYPES[dtype])
            require_right(kernels, run, given, dtype)
            if run in (biased, added):  # whole numbers that fp32 sums up exactly
                whole = {name: torch.randint_like(x, -1, 2) for name, x in given.items()}
                wanted = run(**{name: x.double() for name, x in whole.items()})
                assert torch.equal(kernels(**whole), wanted.to(TYPES[dtype]))


def test_few_columns_are_a_general_kernel_s() -> None:
    program = cut(added, "bf16", 2048, 96)
    (step,) = program.ways[0].steps
    assert step["kernel"]
    assert {v.schedule for v in program.results[0].record.variants} == {"general"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_120a"])
def test_architectures_without_warpgroup_products_have_no_schedule_for_them(arch: str) -> None:
    record = cut(biased, "bf16", 2048, 3000).results[0].record
    with pytest.raises(PlanError, match="no schedule"):
        variants(tile_program(record.recipe, record.graph, arch), target(arch))


def test_sixteen_rows_are_the_fewest_of_a_kernel() -> None:
    record = cut(biased, "bf16", 2048, 3000).results[0].record
    program = tile_program(record.recipe, record.graph, "sm_90a")
    assert buckets(program, target("sm_90a")) == (16, 32, 64)
