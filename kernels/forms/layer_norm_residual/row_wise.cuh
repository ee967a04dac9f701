// mirage-kernels generate layer_norm_residual
// Schedule  row-wise: a block holds a token whole in registers.
// Formula   [M, K] = layer_norm(total, eps) * norm_weight + norm_bias; total = x + residual
// Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, norm_bias
//           [K] contiguous, residual [M, K] rows 16-byte aligned, any row stride, out [M, K]
//           contiguous, total [M, K] contiguous; any M >= 0.
#pragma once

#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    layer_norm_residual(const __grid_constant__ LaunchArgs args) {
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
  const auto residual = tile::line_at<Lines, T>(args.inputs[3], token * args.row_strides[3]);
  T* out = static_cast<T*>(args.outputs[0]);    // [M, K]
  T* total = static_cast<T*>(args.outputs[1]);  // [M, K]
  const float eps = args.scalars[0];

  if (!args.constant_weights) tile::grid_dependency_wait();
  const auto norm_weight_line = norm_weight.load();  // [K]
  const auto norm_bias_line = norm_bias.load();      // [K]
  tile::grid_dependency_wait();
  const auto x_tile = x.load();                                              // [M, K]
  const auto residual_tile = residual.load();                                // [M, K]
  const auto total_tile = tile::add<float>(x_tile, residual_tile);           // [M, K]
  const float sum_total = tile::sum_line<Lines>(total_tile, sums[0]);        // [M]
  const float mean_sum = tile::div(sum_total, K);                            // [M]
  const auto total_minus_mean_sum = tile::sub<float>(total_tile, mean_sum);  // [M, K]
  const auto total_minus_mean_sum_squared =
      tile::mul<float>(total_minus_mean_sum, total_minus_mean_sum);
  const float sum_total_minus_mean_sum_squared =
      tile::sum_line<Lines>(total_minus_mean_sum_squared, sums[1]);
  const float mean_total_minus_mean_sum_squared = tile::div(sum_total_minus_mean_sum_squared, K);
  const float mean_total_minus_mean_sum_squared_plus =
      tile::add(eps, mean_total_minus_mean_sum_squared);
  const tile::Root root = tile::sqrt(mean_total_minus_mean_sum_squared_plus);             // [M]
  const auto normed_total_minus_mean_sum = tile::div<float>(total_minus_mean_sum, root);  // [M, K]
  const auto scaled_normed_total_minus_mean_sum =
      tile::mul<float>(norm_weight_line, normed_total_minus_mean_sum);
  const auto scaled_normed_total_minus_mean_sum_plus =
      tile::add<float>(norm_bias_line, scaled_normed_total_minus_mean_sum);
  tile::store_line<Lines>(out + token * K, scaled_normed_total_minus_mean_sum_plus);  // [M, K]
  tile::store_line<Lines>(total + token * K, total_tile);                             // [M, K]
}

template <class... Knobs>
cudaError_t launch(RowWise<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = RowWise<Knobs...>;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  const tile::Grid grid{args.dims[0], 1, kThreads, 0};
  return tile::launch(layer_norm_residual<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
