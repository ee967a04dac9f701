// mirage-kernels generate layer_norm_linear --arch sm_90a --dtype bf16 --shape K=4096,N=4096
//
// Front  a launch in front of that of held tokens makes x_made once, a block per token. What
//        K4096_N4096_bf16.cu launches: up to 16 tokens: a block of 4 warps each in front, then 128
//        blocks of 8 warps, which hold tokens in registers, 145 KiB shared; up to 32 tokens: a
//        block of 4 warps each in front, then 128 blocks of 8 warps, which hold tokens in
//        registers, 129 KiB shared; any number of tokens: for each 64 of them a block of 4 warps
//        each in front, then 64 clusters of 2 blocks that split the loop, which hold tokens in
//        registers, 145 KiB shared.
#pragma once

#include "tile/front.cuh"
#include "tile/tile.cuh"

#include "K4096_N4096_bf16.held.cuh"
#include "K4096_N4096_bf16.shape.cuh"

namespace mirage::generated {
namespace {

// Where tokens are many, a launch in front makes x_made, once.
template <class Knobs>
constexpr int kFrontThreads = Knobs::kFrontWarps * tile::kWarpLanes;

template <class Knobs>
__global__ void __launch_bounds__(kFrontThreads<Knobs>)
    layer_norm_linear_front(const __grid_constant__ LaunchArgs args) {
  using Lines = tile::Lines<K, kFrontThreads<Knobs>>;
  __shared__ float sums[2][Lines::kWarps];

  const T* x = static_cast<const T*>(args.inputs[0]);            // [M, K]
  const T* norm_weight = static_cast<const T*>(args.inputs[1]);  // [K]
  const T* norm_bias = static_cast<const T*>(args.inputs[2]);    // [K]
  T* x_made = static_cast<T*>(args.workspace);                   // [M, K]
  const int64_t token = blockIdx.x;
  const float eps = args.scalars[0];

  tile::start_in_front();
  const auto x_tile = tile::load_present<Lines>(x + token * args.row_strides[0]);        // [M, K]
  const auto norm_weight_tile = tile::load_present<Lines>(norm_weight);                  // [K]
  const auto norm_bias_tile = tile::load_present<Lines>(norm_bias);                      // [K]
  const float sum_x = tile::sum_line<Lines>(x_tile, sums[0]);                            // [M]
  const float mean_x = tile::div(sum_x, K);                                              // [M]
  const auto x_minus_mean_x = tile::sub<float>(x_tile, mean_x);                          // [M, K]
  const auto x_minus_mean_x_squared = tile::mul<float>(x_minus_mean_x, x_minus_mean_x);  // [M, K]
  const float sum_x_minus_mean_x_squared = tile::sum_line<Lines>(x_minus_mean_x_squared, sums[1]);
  const float mean_x_minus_mean_x_squared = tile::div(sum_x_minus_mean_x_squared, K);  // [M]
  const float mean_x_minus_mean_x_squared_plus = tile::add(eps, mean_x_minus_mean_x_squared);
  const float root = tile::sqrt(mean_x_minus_mean_x_squared_plus);      // [M]
  const auto x_tile_2_minus_mean_x = tile::sub<float>(x_tile, mean_x);  // [M, K]
  const auto normed_x_tile_2_minus_mean_x = tile::div<float>(x_tile_2_minus_mean_x, root);
  const auto scaled_normed_x_tile_2_minus_mean_x =
      tile::mul<float>(normed_x_tile_2_minus_mean_x, norm_weight_tile);
  const auto scaled_normed_x_tile_2_minus_mean_x_plus =
      tile::add<T>(scaled_normed_x_tile_2_minus_mean_x, norm_bias_tile);
  tile::store_line<Lines>(x_made + token * K, scaled_normed_x_tile_2_minus_mean_x_plus);  // [M, K]
}

template <class Knobs>
cudaError_t launch_front(const LaunchArgs& args, cudaStream_t stream) {
  const tile::Grid grid{args.dims[0], 1, kFrontThreads<Knobs>, 0};
  const cudaError_t status = tile::launch(layer_norm_linear_front<Knobs>, grid, args, stream);
  if (status != cudaSuccess) return status;
  return launch_held<Knobs>(tile::behind(args, 0, K), stream);
}

template <class Knobs>
int64_t workspace(const LaunchArgs& args) {
  const int64_t M = args.dims[0];
  return M * K * static_cast<int64_t>(sizeof(T));
}

}  // namespace
}  // namespace mirage::generated
