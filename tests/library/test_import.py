"""Imports are lazy, do no CUDA work, and say in one sentence what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import mirage_kernels
from mirage_kernels import loading
from mirage_kernels.errors import ExtensionMissingError, TorchTooOldError


def run_python(program: str) -> str:
    """Run a program in a process of its own: a bad registration would end this one."""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("package", ["mirage_kernels", "mirage_kernels.generator"])
def test_importing_the_package_loads_neither_torch_nor_the_extension(package: str) -> None:
    loaded = run_python(f"import sys, {package}; print(sorted(sys.modules))")
    assert "'torch'" not in loaded
    assert "mirage_kernels._C" not in loaded


def test_importing_an_op_registers_it_and_leaves_cuda_alone() -> None:
    program = (
        "from mirage_kernels import rms_norm_linear; import torch;"
        "print(torch.ops.mirage_kernels.rms_norm_linear.default._schema);"
        "print(torch.cuda.is_initialized())"
    )
    schema, initialised = run_python(program).splitlines()
    assert schema == (
        "mirage_kernels::rms_norm_linear(Tensor x, Tensor norm_weight, Tensor weight, float eps, "
        "Tensor? bias=None, float weight_offset=0., *, "
        "int assume=-1) -> Tensor"
    )
    assert initialised == "False"


def test_every_module_registers_what_it_needs() -> None:
    """Each is imported in a process forked off one that has torch alone."""
    modules = sorted({*mirage_kernels._HOME.values()})
    program = f"""
import os, sys, torch
for module in {modules}:
    if not os.fork():
        __import__(module)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"importing {{module}} fails")
"""
    assert run_python(program) == ""


def test_importing_everything_leaves_the_compiler_alone() -> None:
    program = (
        "import sys, mirage_kernels as m; [getattr(m, name) for name in m.__all__];"
        "print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    assert run_python(program) == "True False"


def test_everything_public_is_there() -> None:
    for name in mirage_kernels.__all__:
        assert getattr(mirage_kernels, name).__doc__, name
    assert set(mirage_kernels.__all__) <= set(dir(mirage_kernels))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'no_such_op'"):
        mirage_kernels.no_such_op  # noqa: B018


def test_old_torch_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(TorchTooOldError, match=r"needs torch >= 2.10, but torch 2.9.1\+cpu is"):
        loading.load_extension()


def test_missing_extension_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mirage_kernels._C", None)
    with pytest.raises(ExtensionMissingError, match="install a wheel, or in a source checkout run"):
        loading.load_extension()
