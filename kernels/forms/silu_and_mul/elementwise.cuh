// mirage-kernels generate silu_and_mul
// Schedule  elementwise: every block takes a piece of a token.
// Formula   [M, N] = silu(gate) * up
// Expects   gate [M, N] rows 16-byte aligned, any row stride, up [M, N] rows 16-byte aligned, any
//           row stride, out [M, N] contiguous; any M >= 0.
#pragma once

#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    silu_and_mul(const __grid_constant__ LaunchArgs args) {
  using T = typename Config::T;
  constexpr int N = Config::N;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  using Lines = tile::Lines<Config::kLine, kThreads>;
  tile::launch_dependents();

  const int64_t token = blockIdx.x / (N / Config::kLine);
  const int first = blockIdx.x % (N / Config::kLine) * Config::kLine;
  const auto gate = tile::line_at<Lines, T>(args.inputs[0], token * args.row_strides[0] + first);
  const auto up = tile::line_at<Lines, T>(args.inputs[1], token * args.row_strides[1] + first);
  T* out = static_cast<T*>(args.outputs[0]);  // [M, N]

  tile::grid_dependency_wait();
  const auto gate_tile = gate.load();                                    // [M, N]
  const auto up_tile = up.load();                                        // [M, N]
  const auto silu_gate = tile::silu<float>(gate_tile);                   // [M, N]
  const auto up_times_silu_gate = tile::mul<float>(up_tile, silu_gate);  // [M, N]
  tile::store_line<Lines>(out + token * N + first, up_times_silu_gate);  // [M, N]
}

template <class... Knobs>
cudaError_t launch(Elementwise<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = Elementwise<Knobs...>;
  constexpr int N = Config::N;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  const tile::Grid grid{args.dims[0] * (N / Config::kLine), 1, kThreads, 0};
  return tile::launch(silu_and_mul<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
