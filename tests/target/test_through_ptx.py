"""Kernels for sm_80 on whatever newer GPU is here, through the PTX that their builds carry."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from mirage_kernels.generator.bench.workload import LaunchArgs
from mirage_kernels.generator.build.compile import ROOT, gencode
from mirage_kernels.generator.build.toolchain import find_nvcc

pytestmark = pytest.mark.gpu

ARCH = "sm_80"
EPS = 1e-6
TOKENS = [1, 8, 13, 32, 64, 100]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# A kernel may err this much more than PyTorch's own unfused program.
ERROR_ALLOWED = 1.1


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels of sm_80 alone, compiled as its builds are: no code for any other GPU."""
    nvcc = find_nvcc()
    if nvcc is None or not (ROOT / "csrc").is_dir():
        pytest.skip("needs nvcc and the sources")
    folder = ROOT / "kernels" / ARCH
    sources = [*sorted(folder.rglob("*.cu")), folder / "table.cpp", ROOT / "csrc/bench/calls.cpp"]
    out = tmp_path_factory.mktemp("through_ptx") / "kernels.so"
    flags = ["-O3", "-std=c++17", f"-I{ROOT / 'csrc'}", gencode(ARCH)]
    flags += ["-shared", "-Xcompiler=-fPIC", "--threads=0"]
    subprocess.run([str(nvcc), *flags, *map(str, sources), "-o", str(out)], check=True)
    made = ctypes.CDLL(str(out))
    made.mirage_kernel_name.restype = ctypes.c_char_p
    return made


Call = Callable[..., Tensor]


@pytest.fixture
def call(library: ctypes.CDLL) -> Call:
    """Launch a kernel by its name in the table."""
    names = {library.mirage_kernel_name(i): i for i in range(library.mirage_kernel_count())}

    def run(name: str, *tensors: Tensor) -> Tensor:
        rows = next(t for t in reversed(tensors) if t.dim() == 2).shape[0]
        out = tensors[0].new_empty(tensors[0].shape[0], rows)
        args = LaunchArgs.from_buffer(bytearray(library.mirage_launch_bytes()))
        for i, tensor in enumerate(tensors):
            args.inputs[i] = tensor.data_ptr()
            args.row_strides[i] = tensor.stride(0)
        args.outputs[0] = out.data_ptr()
        args.dims[0] = tensors[0].shape[0]
        args.scalars[0] = EPS
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        assert library.mirage_launch(names[name.encode()], ctypes.byref(args), stream) == 0
        torch.cuda.synchronize()
        return out

    return run


def draw(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def error(made: Tensor, exact: Tensor) -> float:
    return float((made.double() - exact).norm() / exact.norm())


Unfused = Callable[..., Tensor]
UNFUSED: dict[str, Unfused] = {
    "rms_norm_linear/K4096_N6144": lambda x, norm_weight, weight: linear(
        rms_norm(x, (4096,), norm_weight, EPS), weight
    ),
    "gated_mlp/K4096_N4096": lambda x, gate, up: silu(linear(x, gate)) * linear(x, up),
}


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNFUSED)
def test_a_kernel_errs_no_more_than_pytorch(call: Call, name: str, dtype: str, tokens: int) -> None:
    kind, unfused = DTYPES[dtype], UNFUSED[name]
    rows = int(name.rpartition("N")[2])
    weight = draw(rows, 4096, dtype=kind, seed=3) / 64
    first = draw(rows, 4096, dtype=kind, seed=2) / 64
    if name.startswith("rms_norm"):
        first = 1 + 0.1 * draw(4096, dtype=kind, seed=2)
    inputs = (draw(tokens, 4096, dtype=kind, seed=1), first, weight)
    exact = unfused(*(t.double() for t in inputs))
    made = call(f"{name}_{dtype}", *inputs)
    assert error(made, exact) <= ERROR_ALLOWED * error(unfused(*inputs), exact)
