"""Kernels of whole numbers that are inputs, and of results of 8 bits: what a call may give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from compilers import programs
from torch import Tensor

import mirage_kernels

pytestmark = pytest.mark.usefixtures("nothing_loaded")
LONG = 200
QUANTIZED = """
import torch
def quantized(x, lengths):
    seen = torch.arange(x.shape[-1], device=x.device) < lengths[:, None]
    y = torch.where(seen, x, 0).float()
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    wide = (y * lengths[:, None]).to(torch.float8_e4m3fn)
    return torch.round(y / scale).to(torch.int8), scale, wide
example_inputs = {"x": torch.empty(4, 200, dtype=torch.bfloat16, device="meta"),
    "lengths": torch.empty(4, dtype=torch.int64, device="meta")}
dynamic = {"x": {0: "M"}, "lengths": {0: "M"}}
"""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of given lengths, quantized in one kernel, compiled."""
    return programs(tmp_path_factory.mktemp("quantized"), [("quantized", QUANTIZED)])


def test_one_kernel_makes_results_of_three_types(quantized: Path) -> None:
    mirage_kernels.load(quantized)
    assert len([*quantized.glob("sm_*/*/*.cu")]) == 1
    x = torch.empty(7, LONG, dtype=torch.bfloat16, device="meta")
    made = mirage_kernels.program("quantized")(x, torch.empty(7, dtype=torch.int64, device="meta"))
    assert [t.dtype for t in made] == [torch.int8, torch.float32, torch.float8_e4m3fn]
    assert [(*t.shape,) for t in made] == [(7, LONG), (7, 1), (7, LONG)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
def test_whole_numbers_are_of_the_type_of_the_examples(quantized: Path, dtype: torch.dtype) -> None:
    mirage_kernels.load(quantized)
    x = torch.empty(7, LONG, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match=r"lengths is of torch.*; torch\.int64 works"):
        mirage_kernels.program("quantized")(x, torch.empty(7, dtype=dtype, device="meta"))


def lying(numbers: Tensor, kind: str) -> Tensor:
    """Return whole numbers as they may lie: others beside them would show."""
    if kind == "alone":
        return numbers
    if kind == "behind one":
        return torch.cat([numbers.new_tensor([10**6]), numbers])[1:]
    return torch.stack([numbers, numbers.new_full(numbers.shape, 10**6)], -1)[:, 0]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["alone", "behind one", "every other"])
def test_its_kernel_computes_it_however_lengths_lie(quantized: Path, kind: str) -> None:
    mirage_kernels.load(quantized)
    lengths = torch.tensor([1, 200, 77, 0, 199, 128, 3]).cuda()
    x = 5 * torch.randn(7, LONG, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
    x[1, 5], x[0, 0] = torch.nan, 700.0
    seen = torch.arange(LONG, device="cuda") < lengths[:, None]
    y = torch.where(seen, x, 0).double()
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    whole, own, wide = mirage_kernels.program("quantized")(x, lying(lengths, kind))
    torch.testing.assert_close(own.double(), scale, rtol=1e-6, atol=0, equal_nan=True)
    rest = [i for i in range(7) if i != 1]
    assert ((whole.double() - y / scale)[rest].abs() <= 0.5001).all()
    wanted = (y * lengths[:, None]).float().to(torch.float8_e4m3fn).float()
    assert wanted[0, 0].isnan()
    torch.testing.assert_close(wide.float(), wanted, rtol=0, atol=0, equal_nan=True)
