"""Loaded kernels on a GPU: an op computes with them what float64 does, and refuses without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from compilers import nvcc

pytest.importorskip("torch")

from mirage_kernels import kernel_table

pytestmark = pytest.mark.gpu

CALL = """
import sys
import torch
import mirage_kernels as mk

kind = getattr(torch, sys.argv[1])
torch.manual_seed(0)
norm, weight = torch.rand(72) + 0.5, torch.randn(40, 72) / 72**0.5
norm, weight = norm.to("cuda", kind), weight.to("cuda", kind)
for tokens in (1, 8, 17, 64):
    x = torch.randn(tokens, 72).to("cuda", kind)
    root = (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    exact = (x.double() / root * norm.double()) @ weight.double().t()
    found = mk.rms_norm_linear(x, norm, weight, eps=1e-5).double()
    print(((found - exact).norm() / exact.norm()).item())
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compiled kernel of a shape that no build has, in both types."""
    from mirage_kernels.generator.cli import main

    nvcc()
    folder = tmp_path_factory.mktemp("made")
    words = ["generate", "rms_norm_linear", "--arch", kernel_table()[0].arch]
    words += ["--shape", "K=72,N=40", "--jobs", "1", "--out", str(folder)]
    assert main(words) == 0
    assert main(["compile", str(folder)]) == 0
    return folder


def called(dtype: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call the op in a process of its own: what is loaded stays loaded."""
    command = [sys.executable, "-c", CALL, dtype]
    env = os.environ | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("dtype", "most"), [("float16", 1e-3), ("bfloat16", 8e-3)])
def test_an_op_computes_with_a_loaded_kernel(made: Path, dtype: str, most: float) -> None:
    outcome = called(dtype, MIRAGE_KERNELS_PATH=str(made))
    assert outcome.returncode == 0, outcome.stderr
    errors = [float(line) for line in outcome.stdout.split()]
    assert len(errors) == 4
    assert max(errors) < most


def test_without_the_kernel_the_error_names_the_commands_that_make_it() -> None:
    said = called("float16").stderr
    assert "`mirage-kernels generate rms_norm_linear --arch sm_" in said
    assert '`mirage-kernels compile DIR` make it, mirage_kernels.load("DIR") adds it' in said
