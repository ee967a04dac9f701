"""Triton programs of masks that are inputs, in Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported: they run in a process of their own.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import mirage_kernels.program_operators  # noqa: F401
from mirage_kernels.generator.bench.demonstrate import interpreted, loaded
from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.request import Request

KEYS = 300  # in several steps
SHAPES = {"seen": (2, 40), "q": (2, 2, 1, 16), "k": (2, 2, 40, 16), "v": (2, 2, 40, 16)}
LONG = {"mask": (2, KEYS), "q": (2, 2, 1, 16), "k": (2, 2, KEYS, 16), "v": (2, 2, KEYS, 16)}
SHARED = {**LONG, "sink": (2,)}


def decoded(seen: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * 0.25
    return torch.softmax(scores.masked_fill(seen[:, None, None, :], -math.inf), -1) @ v


def added(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + mask[:, None, None], -1) @ v


def sunk(
    mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor
) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * 0.25 + mask[:, None, None]
    rest = sink[None, :, None, None].expand(2, 2, 1, 1)
    return torch.ops.mirage_kernels.softmax_beside(scores, [rest], -1) @ v  # type: ignore[no-any-return]


def of_lengths(
    lengths: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * 0.25
    away = lengths[:, None, None, None] - torch.arange(KEYS)  # above 0 where keys are seen
    scores = scores - away.to(q.dtype) * 0.01
    return torch.softmax(scores.masked_fill(away <= 0, -math.inf), -1) @ v


COUNTED = {"lengths": (2,), **{n: shape for n, shape in LONG.items() if n != "mask"}}
FUNCTIONS = {
    "decoded": (decoded, SHAPES),
    "added": (added, LONG),
    "sunk": (sunk, SHARED),
    "of_lengths": (of_lengths, COUNTED),
}


def example(name: str, shape: tuple[int, ...], device: str) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(len(name))
    if name == "lengths":
        return torch.tensor([KEYS - 20, 0], device=device)
    made = torch.randn(shape, generator=drawn)
    return (made > 0 if name == "seen" else made.half()).to(device)


def main(name: str, path: Path) -> None:
    """Run the program, and compare it with PyTorch; the last sequence is hidden whole.

    So are the first keys of the other, more than a step has.
    """
    module = loaded(path)
    run, shapes = FUNCTIONS[name]
    given = {n: example(n, shape, "cpu") for n, shape in shapes.items()}
    if "seen" in given:
        given["seen"][1] = True
    elif "mask" in given:
        given["mask"][0, :200] = given["mask"][1] = -math.inf
    wanted = run(*(x.float() if x.is_floating_point() else x for x in given.values()))
    made = getattr(module, name)(**(given | {"q": given["q"].squeeze(2)}))  # its one row is no dim
    assert made.dtype is torch.float16
    assert (wanted[1] == 0).all() if "sink" in given else wanted[1].isnan().all()
    assert wanted[0].isfinite().all()
    torch.testing.assert_close(
        made.float().reshape(wanted.shape), wanted, atol=2e-3, rtol=2e-3, equal_nan=True
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_or_a_step_of_which_all_is_hidden_is_as_pytorch_s(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    run, shapes = FUNCTIONS[name]
    recipe = from_torch(run, {n: example(n, shape, "meta") for n, shape in shapes.items()})
    request = Request(recipe, recipe.shapes[0], DType.FP16, "sm_90a")
    files = generate(request, jobs=1, progress=lambda event: None).files
    (text,) = (text for file, text in files.items() if file.endswith("triton.py"))
    path = tmp_path / "program.py"
    path.write_text(text)
    interpreted(main, name, path)
