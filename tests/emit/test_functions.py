"""Functions of device code on the host: every 16-bit number, instructions at their worst."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping

import pytest
import torch
from compilers import ROOT
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mirage_kernels.generator.build.toolchain import find_toolchain

# Instructions as csrc/tile/math/approximations.cuh says, `wrong` and `other` being -1, 0 or 1.
INSTRUCTIONS = """
#pragma once
#include <cmath>
#define __device__
namespace mirage::tile {
inline double wrong, other;
inline float with_error(double exact, double error) { return float(exact * (1 + error)); }
inline float quotient(float a, float b) { return with_error(double(a) / b, other * 0x1p-23); }
inline float flushed(float a) { return std::fabs(a) < 0x1p-126f ? 0.0f : a; }
inline float reciprocal(float a) { return flushed(with_error(1.0 / a, other * 0x1p-23)); }
inline float power_of_two(float a) {
  return flushed(with_error(std::exp2(double(a)), wrong * 0x1p-22));
}
inline float base_two_log(float a) { return float(std::log2(double(a)) + wrong * 0x1p-22); }
}
"""
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include "tile/math/functions.cuh"
using namespace mirage::tile;
int main(int, char** given) {
  wrong = std::atof(given[2]), other = std::atof(given[3]);
  for (float a; std::fread(&a, 4, 1, stdin) == 1;) {
    float made = 0;
CHOSEN
    std::fwrite(&made, 4, 1, stdout);
  }
}
"""
FUNCTIONS: Mapping[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "tanh": ("tanh_of(a)", torch.tanh),
    "elu": ("elu_of(a)", F.elu),
    "mish": ("mish_of(a)", F.mish),
    "softplus": ("softplus_of(a)", F.softplus),
    "sigmoid": ("logistic(1.0f, a)", torch.sigmoid),
    "silu": ("logistic(a, a)", F.silu),
}
WRONG = [(0, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]
each_type = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
each_error = pytest.mark.parametrize("wrong", WRONG, ids=str)
Run = Callable[[str, tuple[int, int], Tensor], Tensor]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Compile the functions and return what runs one of them on fp32 numbers."""
    folder = tmp_path_factory.mktemp("functions")
    stand_in = folder / "tile/math/approximations.cuh"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text(INSTRUCTIONS)
    chosen = "".join(
        f'    if (!std::strcmp(given[1], "{name}")) made = {text};\n'
        for name, (text, _) in FUNCTIONS.items()
    )
    (folder / "run.cpp").write_text(PROGRAM.replace("CHOSEN\n", chosen))
    options = ["-O1", "-std=c++17", f"-I{folder}", f"-I{ROOT / 'csrc'}", "-o", "run", "run.cpp"]
    subprocess.run([str(find_toolchain().cxx), *options], check=True, cwd=folder)

    def runs(name: str, wrong: tuple[int, int], inputs: Tensor) -> Tensor:
        command = [str(folder / "run"), name, *map(str, wrong)]
        given = inputs.float().numpy().tobytes()
        made = subprocess.run(command, input=given, capture_output=True, check=True).stdout
        return torch.frombuffer(bytearray(made), dtype=torch.float32)

    return runs


def numbers(dtype: torch.dtype) -> Tensor:
    """Return every number of a 16-bit type."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    return every[every.isfinite()]


def relative(made: Tensor, exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Return relative errors of normal numbers of a type, far from where powers become 0."""
    least = max(torch.finfo(dtype).tiny, 2**-100)
    normal = (exact.abs() >= least) & exact.to(dtype).isfinite()
    return ((made.double() - exact) / exact)[normal]


@each_error
@each_type
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rounded_results_are_as_exact_as_correctly_rounded_ones(
    run: Run, name: str, dtype: torch.dtype, wrong: tuple[int, int]
) -> None:
    inputs, exactly = numbers(dtype), FUNCTIONS[name][1]
    exact = exactly(inputs.double())
    made, best = run(name, wrong, inputs).to(dtype), exact.to(dtype)
    errors, least = relative(made, exact, dtype), relative(best, exact, dtype)
    assert errors.abs().max() <= 1.02 * least.abs().max()
    assert errors.square().mean() <= 1.02 * least.square().mean()


@each_error
@each_type
@pytest.mark.parametrize("name", ["tanh", "elu"])
def test_functions_of_two_parts_keep_their_digits_where_these_meet(
    run: Run, name: str, dtype: torch.dtype, wrong: tuple[int, int]
) -> None:
    inputs, exactly = numbers(dtype), FUNCTIONS[name][1]
    exact = exactly(inputs.double())
    assert relative(run(name, wrong, inputs), exact, dtype).abs().max() < 2**-20


@pytest.mark.parametrize(("name", "ends"), [("tanh", (-1.0, 1.0)), ("elu", (-1.0, torch.inf))])
def test_functions_have_their_limits_at_infinity_and_keep_nan(
    run: Run, name: str, ends: tuple[float, float]
) -> None:
    made = run(name, (0, 0), torch.tensor([-torch.inf, torch.inf, torch.nan]))
    assert tuple(made[:2].tolist()) == ends
    assert made[2].isnan()
