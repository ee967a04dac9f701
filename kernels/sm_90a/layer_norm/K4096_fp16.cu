// mirage-kernels generate layer_norm --arch sm_90a --dtype fp16 --shape K=4096
//
// Formula   [M, K] = layer_norm(x, eps) * norm_weight + norm_bias
// Shape     OPT-6.7B, MPT-7B, GPT-J-6B, Command R7B
// muGraph   one kernel, no loop: the other dims are whole in a block. Its grid, in the muGraph: x
//           cuts M (a launch numbers its blocks as its plan needs).
// Found     the first by predicted time of 84 proved muGraphs that passes the numeric gate and has
//           a plan (3817 states, 84 candidates).
// Proved    equal to the recipe on 4 random draws over finite fields, for the tiles of its one
//           variant, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.3.
// Accuracy  emulated error against float64 (unfused program's): unit 2.1e-04 (2.1e-04), tiny
//           2.0e-04 (2.0e-04), outliers 2.0e-04 (2.0e-04), wide 2.1e-04 (2.1e-04).
// Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, norm_bias
//           [K] contiguous, out [M, K] contiguous; any M >= 0.
// Launch    a block of 4 warps per token, which it holds whole in registers.

#include "launch.h"
#include "tile/tile.cuh"

namespace mirage::generated {
namespace {

using T = __half;
constexpr int K = 4096;  // whole in a block

struct AnyM {
  static constexpr int kWarps = 4;
};

template <class Knobs>
constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;

template <class Knobs>
__global__ void __launch_bounds__(kThreads<Knobs>, 1)
    layer_norm(const __grid_constant__ LaunchArgs args) {
  using Lines = tile::Lines<K, kThreads<Knobs>>;
  __shared__ float sums[2][Lines::kWarps];
  tile::let_next_start();

  const T* x = static_cast<const T*>(args.inputs[0]);            // [M, K]
  const T* norm_weight = static_cast<const T*>(args.inputs[1]);  // [K]
  const T* norm_bias = static_cast<const T*>(args.inputs[2]);    // [K]
  T* out = static_cast<T*>(args.outputs[0]);                     // [M, K]
  const int64_t M = args.dims[0], token = blockIdx.x;
  const float eps = args.scalars[0];

  if (!args.constant_weights) tile::wait_for_previous();
  const auto norm_weight_line = tile::load_line<Lines>(norm_weight);  // [K]
  const auto norm_bias_line = tile::load_line<Lines>(norm_bias);      // [K]
  tile::wait_for_previous();
  const auto x_tile = tile::load_line<Lines>(tile::line_of(x, args.row_strides[0], token, M));
  const float sum_x = tile::sum_line<Lines>(x_tile, sums[0]);                            // [M]
  const float mean_x = tile::div(sum_x, K);                                              // [M]
  const auto x_minus_mean_x = tile::sub<float>(x_tile, mean_x);                          // [M, K]
  const auto x_minus_mean_x_squared = tile::mul<float>(x_minus_mean_x, x_minus_mean_x);  // [M, K]
  const float sum_x_minus_mean_x_squared = tile::sum_line<Lines>(x_minus_mean_x_squared, sums[1]);
  const float mean_x_minus_mean_x_squared = tile::div(sum_x_minus_mean_x_squared, K);  // [M]
  const float mean_x_minus_mean_x_squared_plus = tile::add(eps, mean_x_minus_mean_x_squared);
  const float root = tile::sqrt(mean_x_minus_mean_x_squared_plus);            // [M]
  const auto normed_x_minus_mean_x = tile::div<float>(x_minus_mean_x, root);  // [M, K]
  const auto scaled_normed_x_minus_mean_x =
      tile::mul<float>(norm_weight_line, normed_x_minus_mean_x);
  const auto scaled_normed_x_minus_mean_x_plus =
      tile::add<float>(norm_bias_line, scaled_normed_x_minus_mean_x);
  tile::store_line<Lines>(out + token * K, scaled_normed_x_minus_mean_x_plus);  // [M, K]
}

template <class Knobs>
cudaError_t launch(const LaunchArgs& args, cudaStream_t stream) {
  const tile::Grid grid{args.dims[0], 1, kThreads<Knobs>, 0};
  return tile::launch(layer_norm<Knobs>, grid, args, stream);
}

}  // namespace

cudaError_t layer_norm_K4096_fp16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  return launch<AnyM>(args, stream);
}

}  // namespace mirage::generated
