// mirage-kernels generate rms_norm_residual
// Schedule  cluster rows: the blocks of a cluster hold a token together, each a piece in registers.
// Formula   [M, K] = rms_norm(total) * (norm_weight + weight_offset); total = x + residual
// Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, residual [M,
//           K] rows 16-byte aligned, any row stride, out [M, K] contiguous, total [M, K]
//           contiguous; any M >= 0.
#pragma once

#include "tile/cluster_rows/lines.cuh"
#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    rms_norm_residual_cluster(const __grid_constant__ LaunchArgs args) {
  using T = typename Config::T;
  constexpr int K = Config::K;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  using Lines = tile::Lines<K / Config::kBlocks, kThreads>;
  __shared__ float sums[1][Lines::kWarps], pieces[1][Config::kBlocks];
  tile::launch_dependents();
  tile::arrive_cluster();

  const int64_t token = blockIdx.x / Config::kBlocks;
  const int first = tile::cluster_rank() * (K / Config::kBlocks);
  const auto x = tile::line_at<Lines, T>(args.inputs[0], token * args.row_strides[0] + first);
  const auto norm_weight = tile::line_at<Lines, T>(args.inputs[1], first);  // [K]
  const auto residual =
      tile::line_at<Lines, T>(args.inputs[2], token * args.row_strides[2] + first);
  T* out = static_cast<T*>(args.outputs[0]);    // [M, K]
  T* total = static_cast<T*>(args.outputs[1]);  // [M, K]
  const float eps = args.scalars[0];
  const float weight_offset = args.scalars[1];

  if (!args.constant_weights) tile::grid_dependency_wait();
  const auto norm_weight_line = norm_weight.load();  // [K]
  tile::grid_dependency_wait();
  const auto x_tile = x.load();                // [M, K]
  const auto residual_tile = residual.load();  // [M, K]
  tile::wait_cluster();
  const auto total_tile = tile::add<float>(x_tile, residual_tile);      // [M, K]
  const auto total_squared = tile::mul<float>(total_tile, total_tile);  // [M, K]
  const float sum_total_squared = tile::sum_cluster<Lines>(total_squared, sums[0], pieces[0]);
  const auto weight_offset_plus_norm_weight = tile::add<float>(norm_weight_line, weight_offset);
  const float mean_total_squared = tile::div(sum_total_squared, K);              // [M]
  const float mean_total_squared_plus_eps = tile::add(eps, mean_total_squared);  // [M]
  const tile::Root root = tile::sqrt(mean_total_squared_plus_eps);               // [M]
  const auto normed_total = tile::div<float>(total_tile, root);                  // [M, K]
  const auto scaled_normed = tile::mul<float>(weight_offset_plus_norm_weight, normed_total);
  tile::store_line<Lines>(out + token * K + first, scaled_normed);  // [M, K]
  tile::store_line<Lines>(total + token * K + first, total_tile);   // [M, K]
}

template <class... Knobs>
cudaError_t launch(ClusterRows<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = ClusterRows<Knobs...>;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  const tile::Grid grid{args.dims[0] * Config::kBlocks, 1, kThreads, 0, Config::kBlocks};
  return tile::launch(rms_norm_residual_cluster<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
