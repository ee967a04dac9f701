// mirage-kernels generate rms_norm_add
// Schedule  row-wise: a block holds a token whole in registers.
// Formula   [M, K] = addend + rms_norm(x) * (norm_weight + weight_offset)
// Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, addend [M,
//           K] rows 16-byte aligned, any row stride, out [M, K] contiguous; any M >= 0.
#pragma once

#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    rms_norm_add(const __grid_constant__ LaunchArgs args) {
  using T = typename Config::T;
  constexpr int K = Config::K;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  using Lines = tile::Lines<K, kThreads>;
  __shared__ float sums[1][Lines::kWarps];
  tile::launch_dependents();

  const int64_t token = blockIdx.x;
  const auto x = tile::line_at<Lines, T>(args.inputs[0], token * args.row_strides[0]);  // [M, K]
  const auto norm_weight = tile::line_at<Lines, T>(args.inputs[1]);                     // [K]
  const auto addend = tile::line_at<Lines, T>(args.inputs[2], token * args.row_strides[2]);
  T* out = static_cast<T*>(args.outputs[0]);  // [M, K]
  const float eps = args.scalars[0];
  const float weight_offset = args.scalars[1];

  if (!args.constant_weights) tile::grid_dependency_wait();
  const auto norm_weight_line = norm_weight.load();  // [K]
  tile::grid_dependency_wait();
  const auto x_tile = x.load();                                           // [M, K]
  const auto addend_tile = addend.load();                                 // [M, K]
  const auto x_squared = tile::mul<float>(x_tile, x_tile);                // [M, K]
  const float sum_x_squared = tile::sum_line<Lines>(x_squared, sums[0]);  // [M]
  const auto weight_offset_plus_norm_weight = tile::add<float>(norm_weight_line, weight_offset);
  const float mean_x_squared = tile::div(sum_x_squared, K);              // [M]
  const float mean_x_squared_plus_eps = tile::add(eps, mean_x_squared);  // [M]
  const tile::Root root = tile::sqrt(mean_x_squared_plus_eps);           // [M]
  const auto normed_x = tile::div<float>(x_tile, root);                  // [M, K]
  const auto scaled_normed_x = tile::mul<float>(weight_offset_plus_norm_weight, normed_x);
  const auto scaled_normed_x_plus_addend = tile::add<float>(addend_tile, scaled_normed_x);
  tile::store_line<Lines>(out + token * K, scaled_normed_x_plus_addend);  // [M, K]
}

template <class... Knobs>
cudaError_t launch(RowWise<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = RowWise<Knobs...>;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  const tile::Grid grid{args.dims[0], 1, kThreads, 0};
  return tile::launch(rms_norm_add<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
