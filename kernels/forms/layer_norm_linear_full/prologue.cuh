// mirage-kernels generate layer_norm_linear_full
// Schedule  prologue kernel: a launch before the main one computes x_made once, a block per token.
// Formula   [M, N] = linear(layer_norm(x, eps) * norm_weight + norm_bias, weight) + bias
#pragma once

#include "tile/prologue/launch.cuh"
#include "tile/tile.cuh"
#include "variants.h"

#include "register_operand.cuh"

namespace mirage::generated {
namespace {

// Many tokens: a prologue kernel computes x_made once.
template <class Config>
constexpr int kPrologueThreads = Config::kPrologueWarps * tile::kWarpLanes;

template <class Config>
__global__ void __launch_bounds__(kPrologueThreads<Config>)
    layer_norm_linear_full_prologue(const __grid_constant__ LaunchArgs args) {
  using T = typename Config::T;
  constexpr int K = Config::K;
  using Lines = tile::Lines<K, kPrologueThreads<Config>>;
  __shared__ float sums[2][Lines::kWarps];

  const int64_t token = blockIdx.x;
  const auto x = tile::line_at<Lines, T>(args.inputs[0], token * args.row_strides[0]);  // [M, K]
  const auto norm_weight = tile::line_at<Lines, T>(args.inputs[1]);                     // [K]
  const auto norm_bias = tile::line_if_given<Lines, T>(args.inputs[2]);                 // [K]
  T* x_made = static_cast<T*>(args.workspace);                                          // [M, K]
  const float eps = args.scalars[0];

  tile::launch_prologue();
  const auto x_tile = x.load();                                                          // [M, K]
  const auto norm_weight_tile = norm_weight.load();                                      // [K]
  const auto norm_bias_tile = norm_bias.load();                                          // [K]
  const float sum_x = tile::sum_line<Lines>(x_tile, sums[0]);                            // [M]
  const float mean_x = tile::div(sum_x, K);                                              // [M]
  const auto x_minus_mean_x = tile::sub<float>(x_tile, mean_x);                          // [M, K]
  const auto x_minus_mean_x_squared = tile::mul<float>(x_minus_mean_x, x_minus_mean_x);  // [M, K]
  const float sum_x_minus_mean_x_squared = tile::sum_line<Lines>(x_minus_mean_x_squared, sums[1]);
  const float mean_x_minus_mean_x_squared = tile::div(sum_x_minus_mean_x_squared, K);  // [M]
  const float mean_x_minus_mean_x_squared_plus = tile::add(eps, mean_x_minus_mean_x_squared);
  const tile::Root root = tile::sqrt(mean_x_minus_mean_x_squared_plus);  // [M]
  const auto x_tile_2_minus_mean_x = tile::sub<float>(x_tile, mean_x);   // [M, K]
  const auto normed_x_tile_2_minus_mean_x = tile::div<float>(x_tile_2_minus_mean_x, root);
  const auto scaled_normed_x_tile_2_minus_mean_x =
      tile::mul<float>(normed_x_tile_2_minus_mean_x, norm_weight_tile);
  const auto scaled_normed_x_tile_2_minus_mean_x_plus =
      tile::add<T>(scaled_normed_x_tile_2_minus_mean_x, norm_bias_tile);
  tile::store_line<Lines>(x_made + token * K, scaled_normed_x_tile_2_minus_mean_x_plus);  // [M, K]
}

template <class... Knobs>
cudaError_t launch(AfterPrologue<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = AfterPrologue<Knobs...>;
  constexpr int K = Config::K;
  const tile::Grid grid{args.dims[0], 1, kPrologueThreads<Config>, 0};
  const cudaError_t status =
      tile::launch(layer_norm_linear_full_prologue<Config>, grid, args, stream);
  if (status != cudaSuccess) return status;
  return launch(RegisterOperand<Config>{}, tile::launch_behind(args, 0, K), stream);
}

template <class... Knobs>
int64_t workspace(AfterPrologue<Knobs...>, const LaunchArgs& args) {
  using Config = AfterPrologue<Knobs...>;
  return args.dims[0] * Config::K * static_cast<int64_t>(sizeof(typename Config::T));
}

}  // namespace
}  // namespace mirage::generated
