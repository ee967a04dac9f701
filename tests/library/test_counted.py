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

PENALISED = """
import torch
def penalised(x, presence, frequency, counts):
    return x - frequency[:, None] * counts - presence[:, None] * (counts > 0)
example_inputs = {"x": torch.empty(4, 1000, dtype=torch.bfloat16, device="meta"),
    "presence": torch.empty(4, dtype=torch.bfloat16, device="meta"),
    "frequency": torch.empty(4, dtype=torch.bfloat16, device="meta"),
    "counts": torch.empty(4, 1000, dtype=torch.int64, device="meta")}
dynamic = {name: {0: "M"} for name in example_inputs}
"""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of given lengths, quantized in one kernel, compiled."""
    return programs(tmp_path_factory.mktemp("quantized"), [("quantized", QUANTIZED)])


@pytest.fixture(scope="module")
def penalised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logits with penalties for tokens that were counted, compiled."""
    return programs(tmp_path_factory.mktemp("penalised"), [("penalised", PENALISED)])


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


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["alone", "behind one", "every other"])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_penalties_go_to_the_tokens_that_were_counted(
    penalised: Path, rows: int, kind: str
) -> None:
    mirage_kernels.load(penalised)
    assert len([*penalised.glob("sm_*/*/*.cu")]) == 1
    draw = torch.Generator().manual_seed(rows)
    x, own = (torch.randn(rows, n, generator=draw).bfloat16().cuda() for n in (1000, 2))
    counts = torch.randint(-1, 4, (rows * 1000,), generator=draw).cuda()
    laid = lying(counts, kind).unflatten(0, (rows, 1000))
    made = mirage_kernels.program("penalised")(x, own[:, 0], own[:, 1], laid)
    presence, frequency = (p[:, None].double() for p in own.unbind(1))
    exact = x.double() - frequency * laid - presence * (laid > 0)
    torch.testing.assert_close(made.double(), exact, rtol=2**-8, atol=2**-8)
