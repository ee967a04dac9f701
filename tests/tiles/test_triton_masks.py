"""Triton programs of masks that are inputs, in Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported: this file runs itself in a process of its own.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from mirage_kernels.generator.frontend.from_torch import from_torch
from mirage_kernels.generator.ir import DType
from mirage_kernels.generator.pipeline import generate
from mirage_kernels.generator.request import Request

SHAPES = {"seen": (2, 40), "q": (2, 2, 1, 16), "k": (2, 2, 40, 16), "v": (2, 2, 40, 16)}


def decoded(seen: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * 0.25
    return torch.softmax(scores.masked_fill(seen[:, None, None, :], -math.inf), -1) @ v


def example(name: str, device: str) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(len(name))
    made = torch.randn(SHAPES[name], generator=drawn)
    return (made > 0 if name == "seen" else made.half()).to(device)


def main(path: str) -> None:
    """Run the program, and compare it with PyTorch; the last sequence is hidden whole."""
    spec = spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    given = {name: example(name, "cpu") for name in SHAPES}
    given["seen"][1] = True
    wanted = decoded(given["seen"], *(given[n].float() for n in "qkv"))
    made = module.decoded(**given)
    assert made.dtype is torch.float16
    assert wanted[1].isnan().all()
    torch.testing.assert_close(
        made.float().reshape(wanted.shape), wanted, atol=2e-3, rtol=2e-3, equal_nan=True
    )


def test_a_mask_is_read_by_its_truth_values(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    recipe = from_torch(decoded, {name: example(name, "meta") for name in SHAPES})
    request = Request(recipe, recipe.shapes[0], DType.FP16, "sm_90a")
    files = generate(request, jobs=1, progress=lambda event: None).files
    (text,) = (text for name, text in files.items() if name.endswith("triton.py"))
    (tmp_path / "program.py").write_text(text)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, __file__, str(tmp_path / "program.py")]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, text + made.stderr


if __name__ == "__main__":
    main(sys.argv[1])
