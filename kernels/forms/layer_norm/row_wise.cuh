// mirage-kernels generate layer_norm
// Schedule  row-wise: a block holds a token whole in registers.
// Formula   [M, K] = layer_norm(x, eps) * norm_weight + norm_bias
// Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, norm_bias
//           [K] contiguous, out [M, K] contiguous; any M >= 0.
#pragma once

#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    layer_norm(const __grid_constant__ LaunchArgs args) {
  using T = typename Config::T;
  constexpr int K = Config::K;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  using Lines = tile::Lines<K, kThreads>;
  __shared__ float sums[2][Lines::kWarps];
  tile::launch_dependents();

  const int64_t token = blockIdx.x;
  const auto x = tile::line_at<Lines, T>(args.inputs[0], token * args.row_strides[0]);  // [M, K]
  const auto norm_weight = tile::line_at<Lines, T>(args.inputs[1]);                     // [K]
  const auto norm_bias = tile::line_if_given<Lines, T>(args.inputs[2]);                 // [K]
  T* out = static_cast<T*>(args.outputs[0]);                                            // [M, K]
  const float eps = args.scalars[0];

  if (!args.constant_weights) tile::grid_dependency_wait();
  const auto norm_weight_line = norm_weight.load();  // [K]
  const auto norm_bias_line = norm_bias.load();      // [K]
  tile::grid_dependency_wait();
  const auto x_tile = x.load();                                                          // [M, K]
  const float sum_x = tile::sum_line<Lines>(x_tile, sums[0]);                            // [M]
  const float mean_x = tile::div(sum_x, K);                                              // [M]
  const auto x_minus_mean_x = tile::sub<float>(x_tile, mean_x);                          // [M, K]
  const auto x_minus_mean_x_squared = tile::mul<float>(x_minus_mean_x, x_minus_mean_x);  // [M, K]
  const float sum_x_minus_mean_x_squared = tile::sum_line<Lines>(x_minus_mean_x_squared, sums[1]);
  const float mean_x_minus_mean_x_squared = tile::div(sum_x_minus_mean_x_squared, K);  // [M]
  const float mean_x_minus_mean_x_squared_plus = tile::add(eps, mean_x_minus_mean_x_squared);
  const tile::Root root = tile::sqrt(mean_x_minus_mean_x_squared_plus);       // [M]
  const auto normed_x_minus_mean_x = tile::div<float>(x_minus_mean_x, root);  // [M, K]
  const auto scaled_normed_x_minus_mean_x =
      tile::mul<float>(norm_weight_line, normed_x_minus_mean_x);
  const auto scaled_normed_x_minus_mean_x_plus =
      tile::add<float>(norm_bias_line, scaled_normed_x_minus_mean_x);
  tile::store_line<Lines>(out + token * K, scaled_normed_x_minus_mean_x_plus);  // [M, K]
}

template <class... Knobs>
cudaError_t launch(RowWise<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = RowWise<Knobs...>;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  const tile::Grid grid{args.dims[0], 1, kThreads, 0};
  return tile::launch(layer_norm<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
