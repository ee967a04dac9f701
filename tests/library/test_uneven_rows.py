"""Rows that begin anywhere: read as aligned words that are shifted into place."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from compilers import assembled
from torch import Tensor

import mirage_kernels
from mirage_kernels.generator.build.programs import cute_folder
from mirage_kernels.generator.cli import main
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import Result, generate
from mirage_kernels.generator.records.folder import write
from mirage_kernels.generator.request import Request

COLUMNS = (7, 9, 250, 1023, 4092, 4093, 4095, 32767)
ROWS = 48  # that are summed
TYPES = {DType.BF16: torch.bfloat16, DType.FP16: torch.float16}


def sum_of_columns(x: Tensor) -> Tensor:
    return torch.sum(x, dim=1)


def max_of_columns(x: Tensor) -> Tensor:
    return torch.amax(x, dim=1)


def sum_of_rows(x: Tensor) -> Tensor:
    return torch.sum(x, dim=2)


def below_max_of_rows(x: Tensor) -> Tensor:
    """What reads a row twice, so that a block keeps it."""
    return x - torch.amax(x, dim=2, keepdim=True)


FUNCTIONS = (sum_of_columns, max_of_columns, sum_of_rows, below_max_of_rows)


@cache
def made(function: Callable[[Tensor], Tensor], columns: int, dtype: DType = DType.BF16) -> Result:
    given = {"x": torch.empty(4, ROWS, columns, dtype=TYPES[dtype], device="meta")}
    recipe = from_torch(function, given, dynamic={"x": {0: "M"}})
    request = Request(recipe, recipe.shapes[0], dtype, "sm_90a")
    return generate(request, jobs=1, progress=lambda event: None)


def source(result: Result) -> str:
    return next(text for path, text in result.files.items() if path.endswith(".cu"))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_uneven_rows_are_read_as_vectors_up_to_the_end_of_their_tensor(
    function: Callable[[Tensor], Tensor],
) -> None:
    text = source(made(function, 1023))
    summed = "reduce_words<kAligned" in text and "_parts, args.x_tile_in_end, [&]" in text
    read = "read_uneven<8, kAligned>(from, stride, left, args.x_tile_in_end)" in text
    assert (read, summed) == ((False, True) if "columns" in function.__name__ else (True, False))
    assert "args_0.x_tile_in_end = x_tensor.end;" in text


def test_even_rows_are_read_as_before() -> None:
    text = source(made(sum_of_columns, 1024))
    assert "read_uneven" not in text
    assert "_end" not in text


def test_a_row_that_a_block_keeps_has_whole_vectors() -> None:
    text = source(made(below_max_of_rows, 1023))
    assert re.search(r"each_taken<Uneven<__nv_bfloat16, 8>, \d+, \d+, 2>", text)
    assert "= shifted(taken);" in text


def test_results_of_uneven_rows_are_stored_side_by_side() -> None:
    text = source(made(below_max_of_rows, 1023))
    assert set(re.findall(r"write_within<(\d), (\w+)>", text)) == {("1", "kAligned")}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("columns", [1023, 4092])
def test_its_kernels_spill_no_registers(
    function: Callable[[Tensor], Tensor], columns: int, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text(source(made(function, columns)))
    options = ("--expt-relaxed-constexpr", "-isystem", str(cute_folder()))
    kernels = assembled(path, "sm_90a", tmp_path, *options)
    assert {kernel.spill_bytes for kernel in kernels} == {0}


Op = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module")
def op(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Op]:
    """Compile the kernel of a function for rows of so many columns, once, and load it."""

    @cache
    def compiled(function: Op, columns: int, dtype: DType) -> Op:
        out = tmp_path_factory.mktemp("uneven_rows")
        write([made(function, columns, dtype)], out)
        assert main(["compile", str(out)]) == 0
        mirage_kernels.load(out)
        return mirage_kernels.program(function.__name__)

    return compiled


def with_columns(*columns: int) -> pytest.MarkDecorator:
    """Give a test every function and extent; `--dist loadgroup` keeps together what shares one."""
    cases = [
        (f, n, pytest.mark.xdist_group(f"{f.__name__}-{n}")) for f in FUNCTIONS for n in columns
    ]
    values = [pytest.param(f, n, marks=group) for f, n, group in cases]
    return pytest.mark.parametrize(("function", "columns"), values)


def small_integers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Numbers whose sums are exact."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype).cuda()


@pytest.mark.gpu
@with_columns(*COLUMNS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("first", range(9))
def test_sums_are_exact_wherever_a_tensor_begins_among_numbers_that_are_not_its_own(
    op: Callable[..., Op], function: Op, columns: int, dtype: DType, first: int
) -> None:
    """Around the tensor lie NaNs; the last elements lie in a word that is not all its own."""
    run, kind = op(function, columns, dtype), TYPES[dtype]
    for count in (1, 3, 17):
        size = count * ROWS * columns
        memory = torch.full((first + size + 3,), float("nan"), dtype=kind, device="cuda")
        x = memory[first : first + size].view(count, ROWS, columns)
        x.copy_(small_integers(tuple(x.shape), kind))
        assert torch.equal(run(x), function(x))


@pytest.mark.gpu
@with_columns(*COLUMNS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_tensor_that_ends_with_its_memory_is_read_to_its_end(
    op: Callable[..., Op], function: Op, columns: int, count: int
) -> None:
    x = small_integers((count, ROWS, columns), torch.bfloat16)
    assert torch.equal(op(function, columns, DType.BF16)(x), function(x))


@pytest.mark.gpu
@with_columns(1023)
def test_rows_with_others_between_them_are_read_where_they_are(
    op: Callable[..., Op], function: Op, columns: int
) -> None:
    wide = small_integers((3, ROWS, 2 * columns + 54), torch.bfloat16)
    run = op(function, columns, DType.BF16)
    for x in (
        wide[..., :columns],
        wide[..., 5 : columns + 5],
        wide[..., ::2][..., :columns],
        wide[::2, :, 8 : columns + 8],
    ):
        assert torch.equal(run(x), function(x))
