// mirage-kernels generate ntrans
// Schedule  row-wise: a block holds a token whole in registers.
// Formula   [M, K] = norm(h + alpha * (norm(x) - h)), where norm(x) = x / sqrt(sum(x^2))
// Expects   h [M, K] rows 16-byte aligned, any row stride, x [M, K] rows 16-byte aligned, any row
//           stride, alpha [K] contiguous, out [M, K] contiguous; any M >= 0.
#pragma once

#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    ntrans(const __grid_constant__ LaunchArgs args) {
  using T = typename Config::T;
  constexpr int K = Config::K;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  using Lines = tile::Lines<K, kThreads>;
  __shared__ float sums[2][Lines::kWarps];
  tile::launch_dependents();

  const int64_t token = blockIdx.x;
  const auto h = tile::line_at<Lines, T>(args.inputs[0], token * args.row_strides[0]);  // [M, K]
  const auto x = tile::line_at<Lines, T>(args.inputs[1], token * args.row_strides[1]);  // [M, K]
  const auto alpha = tile::line_at<Lines, T>(args.inputs[2]);                           // [K]
  T* out = static_cast<T*>(args.outputs[0]);                                            // [M, K]

  if (!args.constant_weights) tile::grid_dependency_wait();
  const auto alpha_line = alpha.load();  // [K]
  tile::grid_dependency_wait();
  const auto h_tile = h.load();                                                         // [M, K]
  const auto x_tile = x.load();                                                         // [M, K]
  const auto x_squared = tile::mul<float>(x_tile, x_tile);                              // [M, K]
  const float sum_x_squared = tile::sum_line<Lines>(x_squared, sums[0]);                // [M]
  const tile::Root root_sum_x_squared = tile::sqrt(sum_x_squared);                      // [M]
  const auto normed_x = tile::div<float>(x_tile, root_sum_x_squared);                   // [M, K]
  const auto normed_x_minus_h = tile::sub<float>(normed_x, h_tile);                     // [M, K]
  const auto scaled_normed_x_minus_h = tile::mul<float>(alpha_line, normed_x_minus_h);  // [K, M]
  const auto scaled_normed_x_minus_h_plus = tile::add<float>(h_tile, scaled_normed_x_minus_h);
  const auto scaled_normed_x_minus_h_plus_squared =
      tile::mul<float>(scaled_normed_x_minus_h_plus, scaled_normed_x_minus_h_plus);
  const float sum_scaled_normed_x_minus_h_plus_squared =
      tile::sum_line<Lines>(scaled_normed_x_minus_h_plus_squared, sums[1]);
  const tile::Root root = tile::sqrt(sum_scaled_normed_x_minus_h_plus_squared);  // [M]
  const auto normed_scaled_normed_x_minus_h_plus =
      tile::div<float>(scaled_normed_x_minus_h_plus, root);
  tile::store_line<Lines>(out + token * K, normed_scaled_normed_x_minus_h_plus);  // [M, K]
}

template <class... Knobs>
cudaError_t launch(RowWise<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = RowWise<Knobs...>;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  const tile::Grid grid{args.dims[0], 1, kThreads, 0};
  return tile::launch(ntrans<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
