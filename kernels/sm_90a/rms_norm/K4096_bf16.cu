// mirage-kernels generate rms_norm --arch sm_90a --dtype bf16 --shape K=4096
//
// Formula   [M, K] = rms_norm(x) * (norm_weight + weight_offset)
// Shape     Llama-3-8B, Qwen3-8B (weight_offset is 0)
// muGraph   one kernel, no loop: the other dims are whole in a block. Its grid, in the muGraph: x
//           cuts M (a launch numbers its blocks as its plan needs).
// Found     the first by predicted time of 168 proved muGraphs that passes the numeric gate and has
//           a plan (383 states, 174 candidates).
// Proved    equal to the recipe on 4 random draws over finite fields, for the tiles of its one
//           variant, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.3.
// Accuracy  emulated error against float64 (unfused program's): unit 1.7e-03 (1.7e-03), tiny
//           1.6e-03 (1.6e-03), outliers 1.6e-03 (1.6e-03), wide 1.7e-03 (1.7e-03).
// Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, out [M, K]
//           contiguous; any M >= 0.
// Launch    a block of 4 warps per token, which it holds whole in registers.

#include "launch.h"
#include "tile/tile.cuh"

namespace mirage::generated {
namespace {

using T = __nv_bfloat16;
constexpr int K = 4096;  // whole in a block

struct AnyM {
  static constexpr int kWarps = 4;
};

template <class Knobs>
constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;

template <class Knobs>
__global__ void __launch_bounds__(kThreads<Knobs>, 1)
    rms_norm(const __grid_constant__ LaunchArgs args) {
  using Lines = tile::Lines<K, kThreads<Knobs>>;
  __shared__ float sums[1][Lines::kWarps];
  tile::let_next_start();

  const T* x = static_cast<const T*>(args.inputs[0]);            // [M, K]
  const T* norm_weight = static_cast<const T*>(args.inputs[1]);  // [K]
  T* out = static_cast<T*>(args.outputs[0]);                     // [M, K]
  const int64_t M = args.dims[0], token = blockIdx.x;
  const float eps = args.scalars[0];
  const float weight_offset = args.scalars[1];

  if (!args.constant_weights) tile::wait_for_previous();
  const auto norm_weight_line = tile::load_line<Lines>(norm_weight);  // [K]
  tile::wait_for_previous();
  const auto x_tile = tile::load_line<Lines>(tile::line_of(x, args.row_strides[0], token, M));
  const auto x_squared = tile::mul<float>(x_tile, x_tile);                // [M, K]
  const float sum_x_squared = tile::sum_line<Lines>(x_squared, sums[0]);  // [M]
  const auto weight_offset_plus_norm_weight = tile::add<float>(norm_weight_line, weight_offset);
  const float mean_x_squared = tile::div(sum_x_squared, K);              // [M]
  const float mean_x_squared_plus_eps = tile::add(eps, mean_x_squared);  // [M]
  const float root = tile::sqrt(mean_x_squared_plus_eps);                // [M]
  const auto normed_x = tile::div<float>(x_tile, root);                  // [M, K]
  const auto scaled_normed_x = tile::mul<float>(weight_offset_plus_norm_weight, normed_x);
  tile::store_line<Lines>(out + token * K, scaled_normed_x);  // [M, K]
}

template <class Knobs>
cudaError_t launch(const LaunchArgs& args, cudaStream_t stream) {
  const tile::Grid grid{args.dims[0], 1, kThreads<Knobs>, 0};
  return tile::launch(rms_norm<Knobs>, grid, args, stream);
}

}  // namespace

cudaError_t rms_norm_K4096_bf16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  return launch<AnyM>(args, stream);
}

}  // namespace mirage::generated
