"""Triton programs of functions and comparisons, in Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported: they run in a process of their own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mirage_kernels.generator.bench.demonstrate import interpreted, loaded
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.request import Request


def functions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    whole = torch.round(3 * x) + torch.floor(2 * y) * torch.erf(x)
    return whole + torch.where(x > y, torch.log(x), y) - (x >= 0) * y


def largest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """NaN where there is one, though Triton's own maxima leave it out."""
    return torch.relu(x) + torch.nn.functional.elu(y) + (x * y).amax(-1, keepdim=True)


def scaled(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """Products with weights of 8 bits."""
    first = torch.nn.functional.linear(x, q.to(x.dtype)) * s
    return first + torch.nn.functional.linear(x, f.to(x.dtype))


def in_groups(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """A product with weights of 8 bits, of which 32 neighbours have one scale."""
    parts = q.to(x.dtype).unflatten(-1, (-1, 32)) * s[..., None]
    return torch.nn.functional.linear(x, parts.flatten(-2))


def penalised(x: torch.Tensor, p: torch.Tensor, f: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Numbers of a row that its elements choose."""
    return x - f[:, None] * c - p[:, None] * (c > 0)


def counted() -> list[torch.Tensor]:
    x, y = examples()
    return [x, y[:, 50], y[:, 51], (torch.arange(5 * 96) % 4 - 1).view(5, 96).int()]


def groups() -> list[torch.Tensor]:
    x, q, *_ = weights()
    return [x, q, (0.5 ** (torch.arange(96) % 5 + 5.0)).half().view(32, 3)]  # products are exact


def weights() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((5, 96), generator=generator).half()
    q = torch.randint(-128, 128, (32, 96), generator=generator).to(torch.int8)
    f = torch.randint(0, 256, (32, 96), generator=generator).to(torch.uint8)
    return [x, q, torch.linspace(-0.02, 0.02, 32).half(), f]


def examples() -> list[torch.Tensor]:
    x, y = (torch.randn((5, 96), generator=torch.Generator().manual_seed(i)) for i in range(2))
    y[:, :20] = x[:, :20]
    x[:, 30:40] = torch.arange(-5, 5) * 0.5  # what is rounded lies between two numbers
    x[0, 0], x[0, 1], y[0, 2] = torch.nan, torch.inf, -torch.inf
    return [x.half(), y.half()]


def main(path: Path, name: str) -> None:
    """Run the program, and compare it with PyTorch."""
    module = loaded(path)
    given = GIVEN.get(name, examples)()
    doubles = [x.double() if x.is_floating_point() else x for x in given]
    wanted = globals()[name](*doubles)
    assert wanted.isnan().any() or name not in ("functions", "largest")
    flat = [x.flatten() for x in given] if name == "functions" else given
    found = getattr(module, name)(*flat).reshape(wanted.shape).double()
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=2e-3, equal_nan=True)


GIVEN = {"scaled": weights, "in_groups": groups, "penalised": counted}
NAMES = {"functions": "xy", "largest": "xy", "scaled": "xqsf", "in_groups": "xqs"}
NAMES |= {"penalised": "xpfc"}


@pytest.mark.parametrize("name", NAMES)
def test_functions_are_those_of_pytorch(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    given = GIVEN.get(name, examples)()
    dynamic = {"x": {0: "M"}} if name == "in_groups" else {}  # only rows of any number are fast
    examples_of = dict(zip(NAMES[name], given, strict=True))
    recipe = from_torch(globals()[name], examples_of, dynamic=dynamic)
    assert bool(recipe.grouped) == (name == "in_groups")
    request = Request(recipe, recipe.shapes[0], DType.FP16, "sm_90a")
    files = generate(request, jobs=1, progress=lambda event: None).files
    (text,) = (text for name, text in files.items() if name.endswith("triton.py"))
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    interpreted(main, path, name)
