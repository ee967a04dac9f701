"""Norms and softmax of rows that no block holds: one launch, no spills, and on a GPU exact."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from compilers import assembled
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import mirage_kernels
from mirage_kernels.generator.build.programs import cute_folder
from mirage_kernels.generator.cli import main
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.request import Request

COLUMNS = (262144, 100_000, 120_003)  # equal parts; uneven ones; no whole vectors
ROWS = (1, 3, 16, 70)
UNIT = 2.0**-8  # of bf16, twice its rounding


def long_layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def long_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def long_group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 8, w, b)


@cache
def made(function: Callable[..., Tensor], columns: int) -> Result:
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    given = {n: torch.empty(columns, dtype=torch.bfloat16, device="meta") for n in names}
    given["x"] = torch.empty(4, columns, dtype=torch.bfloat16, device="meta")
    if function is long_group_norm:
        given |= {n: torch.empty(64, dtype=torch.bfloat16, device="meta") for n in names[1:]}
        given["x"] = torch.empty(4, 64, columns // 8, dtype=torch.bfloat16, device="meta")
    recipe = from_torch(function, given, dynamic={"x": {0: "M"}})
    request = Request(recipe, recipe.shapes[0], DType.BF16, "sm_90a")
    return generate(request, jobs=1, progress=lambda event: None)


def source(result: Result) -> str:
    return next(text for path, text in result.files.items() if path.endswith(".cu"))


@pytest.mark.parametrize(
    ("function", "columns"),
    [(long_layer_norm, 100_000), (long_softmax, 120_003), (long_group_norm, 262144)],
)
def test_a_long_row_takes_one_launch_without_a_workspace(
    function: Callable[..., Tensor], columns: int
) -> None:
    text = source(made(function, columns))
    assert "args_0" in text
    assert "args_1" not in text
    assert "in_workspace" not in text


def test_the_variance_of_a_long_row_is_of_what_is_centred() -> None:
    body = made(long_layer_norm, 100_000).record.graph.blocks[0].body
    assert body is not None
    assert len(body.of("combine")) == 2
    assert not body.of("max")  # mean(x^2) - mean(x)^2 may be below 0


def test_its_kernels_spill_no_registers(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(source(made(long_layer_norm, 100_000)))
    options = ("--expt-relaxed-constexpr", "-isystem", str(cute_folder()))
    kernels = assembled(path, "sm_90a", tmp_path, *options)
    assert {kernel.spill_bytes for kernel in kernels} == {0}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of all functions at all lengths of rows."""
    out = tmp_path_factory.mktemp("long_rows")
    functions = (long_layer_norm, long_softmax, long_group_norm)
    write([made(f, columns) for f in functions for columns in COLUMNS], out)
    assert main(["compile", str(out)]) == 0
    mirage_kernels.load(out)
    return out


def error(function: Callable[..., Tensor], *given: Tensor) -> float:
    """The distance from PyTorch's result in float64, relative to that."""
    found = mirage_kernels.program(function.__name__)(*given)
    return distance(found, function(*(tensor.double() for tensor in given)))


def distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).bfloat16().cuda()


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("offset", [0.0, 50.0])
def test_layer_norm_is_as_exact_as_its_type(rows: int, columns: int, offset: float) -> None:
    """Also where the mean is 50 times the deviation."""
    given = random(rows, columns) + offset, random(columns), random(columns)
    assert error(long_layer_norm, *given) < UNIT


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_softmax_is_as_exact_as_its_type(rows: int, columns: int) -> None:
    assert error(long_softmax, 8 * random(rows, columns)) < UNIT


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("columns", COLUMNS)
def test_group_norm_is_as_exact_as_its_type(columns: int) -> None:
    x, w, b = random(5, 64, columns // 8), random(64), random(64)
    groups = x.view(5, 8, 8, -1), w.view(8, 8), b.view(8, 8)
    found = mirage_kernels.program("long_group_norm")(*groups).view_as(x)
    assert distance(found, long_group_norm(x.double(), w.double(), b.double())) < UNIT


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
def test_rows_that_lie_apart_in_memory_are_read_where_they_are() -> None:
    wide = random(3, 240_006)
    for x in (wide[:, :100_000], wide[:, 1:100_001], wide[:, ::2][:, :100_000]):
        assert error(long_softmax, x) < UNIT


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
def test_the_same_call_gives_the_same_bits() -> None:
    given = random(70, 262144), random(262144), random(262144)
    op = mirage_kernels.program("long_layer_norm")
    first = op(*given)
    assert all(torch.equal(op(*given), first) for _ in range(20))
