"""Sums over rows that begin anywhere, by threads of the host that run the device code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from compilers import ROOT

from mirage_kernels.generator.build.toolchain import find_toolchain

# What the header takes of csrc/general/vectors.cuh, of CuTe and of CUDA.
STAND_INS = {
    "cute/layout.hpp": """
#pragma once
#include <type_traits>
namespace cute { template <int kN> using Int = std::integral_constant<int, kN>; }
""",
    "tile/math/elementwise.cuh": """
#pragma once
#include <cmath>
namespace mirage::tile { inline float maximum(float a, float b) { return a >= b ? a : b; } }
""",
    "general/vectors.cuh": """
#pragma once
#include <cstdint>
#include <cstring>
#include <pthread.h>
#define __device__
inline pthread_barrier_t barrier;
inline thread_local int thread_number;
inline void __syncthreads() { pthread_barrier_wait(&barrier); }
template <class T> T __shfl_xor_sync(unsigned, T value, int) { return value; }
namespace mirage::general {
constexpr int kWarpLanes = 32;
template <int kThreads> int thread_of() { return thread_number % kThreads; }
template <class T, int kWidth> struct alignas(sizeof(T) * kWidth) Vector { T of[kWidth]; };
template <int kWidth, class T> Vector<T, kWidth> read_if(const T* from, bool) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(from);
}
template <int kWidth, bool, class T>
Vector<T, kWidth> read_within(const T* from, int64_t stride, int64_t left) {
  Vector<T, kWidth> made{};
  for (int i = 0; i < kWidth; ++i)
    if (i < left) made.of[i] = from[i * stride];
  return made;
}
}
""",
}
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#include "general/reductions.cuh"
using namespace mirage::general;
constexpr int kThreads = THREADS, kRows = 3, kColumns = COLUMNS, kSteps = 45, kRow = 75;
constexpr int kThere = 2;  // rows of a tile that the tensor has
constexpr int kCount = kThere * kSteps * kRow, kStride = ALIGNED ? 1 : 2;
int main() {
  const size_t bytes = kCount * kStride * sizeof(int16_t);
  auto* x = static_cast<int16_t*>(std::aligned_alloc(16, (bytes + 15) / 16 * 16));
  if (std::fread(x, 2, kCount * kStride, stdin) != size_t(kCount) * kStride) return 1;
  x = static_cast<int16_t*>(std::realloc(x, bytes));  // so that nothing may be read behind it
  std::vector<float> parts(kThreads * 8), out(kThere * kRow);
  pthread_barrier_init(&barrier, nullptr, kThreads);
  const auto block = [&](int thread) {
    thread_number = thread;
    for (int first = 0; first < kRow; first += kColumns)
      reduce_words<ALIGNED, int16_t, OP, kThreads, kRows, kColumns, kSteps, 4>(
          parts.data(), x + kCount * kStride,
          [&](int row, int step) {
            const int16_t* from = x + ((row * kSteps + step) * kRow + first) * kStride;
            return Row<int16_t>{from, kStride, row < kThere ? kRow - first : 0};
          },
          [](const Vector<int16_t, 8>& word, float (&sums)[8]) {
            for (int e = 0; e < 8; ++e) sums[e] = OP::join(sums[e], word.of[e]);
          },
          [&](int row, int c, const float (&joined)[1]) {
            if (row < kThere && first + c < kRow) out[row * kRow + first + c] = joined[0];
          });
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(block, t);
  for (auto& thread : threads) thread.join();
  std::fwrite(out.data(), 4, out.size(), stdout);
  std::free(x);
}
"""


@pytest.mark.parametrize("op", ["Sum", "Max"])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("threads", "columns"), [(64, 56), (64, 24), (32, 8), (128, 120)])
def test_words_of_uneven_rows_are_summed_up_where_they_lie(
    op: str, aligned: bool, threads: int, columns: int, tmp_path: Path
) -> None:
    for name, text in STAND_INS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    chosen = {"THREADS": threads, "COLUMNS": columns, "OP": op, "ALIGNED": int(aligned)}
    given = [f"-D{name}={value}" for name, value in chosen.items()]
    (tmp_path / "run.cpp").write_text(PROGRAM)
    options = ["-O1", "-std=c++17", "-fsanitize=address", "-pthread", *given]
    folders = [f"-I{tmp_path}", f"-I{ROOT / 'csrc'}"]
    command = [str(find_toolchain().cxx), *options, *folders, "-o", "run", "run.cpp"]
    subprocess.run(command, check=True, cwd=tmp_path)
    shape = (2, 45, 75, 1 if aligned else 2)
    x = np.random.default_rng(1).integers(-90, 90, shape).astype(np.int16)
    ran = subprocess.run(
        [str(tmp_path / "run")], input=x.tobytes(), capture_output=True, check=True
    )
    made = np.frombuffer(ran.stdout, np.float32).reshape(2, 75)
    whole = x[..., 0].astype(np.float32)
    assert np.array_equal(made, whole.sum(axis=1) if op == "Sum" else whole.max(axis=1))
