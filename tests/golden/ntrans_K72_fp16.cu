// mirage-kernels generate ntrans --arch sm_90a --dtype fp16 --shape K=72
//
// Formula   [M, K] = norm(h + alpha * (norm(x) - h)), where norm(x) = x / sqrt(sum(x^2))
// Shape     a test
// muGraph   one kernel, no loop: the other dims are whole in a block. Its grid, in the muGraph: x
//           cuts M (a launch numbers its blocks as its plan needs).
// Found     the one proved muGraph; it passes the numeric gate and has a plan (1 states, 1
//           candidate).
// Proved    equal to the recipe on 4 random draws over finite fields, for the tiles of its one
//           variant, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-51.4.
// Accuracy  emulated error against float64 (unfused program's): .
// Expects   h [M, K] rows 16-byte aligned, any row stride, x [M, K] rows 16-byte aligned, any row
//           stride, alpha [K] contiguous, out [M, K] contiguous; any M >= 0.
// Launch    a block of 1 warp per token, which it holds whole in registers.

#include "launch.h"
#include "tile/tile.cuh"

namespace mirage::generated {
namespace {

using T = __half;
constexpr int K = 72;  // whole in a block

struct AnyM {
  static constexpr int kWarps = 1;
};

template <class Knobs>
constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;

template <class Knobs>
__global__ void __launch_bounds__(kThreads<Knobs>, 1)
    ntrans(const __grid_constant__ LaunchArgs args) {
  using Lines = tile::Lines<K, kThreads<Knobs>>;
  __shared__ float sums[2][Lines::kWarps];
  tile::let_next_start();

  const T* h = static_cast<const T*>(args.inputs[0]);      // [M, K]
  const T* x = static_cast<const T*>(args.inputs[1]);      // [M, K]
  const T* alpha = static_cast<const T*>(args.inputs[2]);  // [K]
  T* out = static_cast<T*>(args.outputs[0]);               // [M, K]
  const int64_t M = args.dims[0], token = blockIdx.x;

  if (!args.constant_weights) tile::wait_for_previous();
  const auto alpha_line = tile::load_line<Lines>(alpha);  // [K]
  tile::wait_for_previous();
  const auto h_tile = tile::load_line<Lines>(tile::line_of(h, args.row_strides[0], token, M));
  const auto x_tile = tile::load_line<Lines>(tile::line_of(x, args.row_strides[1], token, M));
  const auto x_squared = tile::mul<float>(x_tile, x_tile);                              // [M, K]
  const float sum_x_squared = tile::sum_line<Lines>(x_squared, sums[0]);                // [M]
  const float root_sum_x_squared = tile::sqrt(sum_x_squared);                           // [M]
  const auto normed_x = tile::div<float>(x_tile, root_sum_x_squared);                   // [M, K]
  const auto normed_x_minus_h = tile::sub<float>(normed_x, h_tile);                     // [M, K]
  const auto scaled_normed_x_minus_h = tile::mul<float>(alpha_line, normed_x_minus_h);  // [K, M]
  const auto scaled_normed_x_minus_h_plus = tile::add<float>(h_tile, scaled_normed_x_minus_h);
  const auto scaled_normed_x_minus_h_plus_squared =
      tile::mul<float>(scaled_normed_x_minus_h_plus, scaled_normed_x_minus_h_plus);
  const float sum_scaled_normed_x_minus_h_plus_squared =
      tile::sum_line<Lines>(scaled_normed_x_minus_h_plus_squared, sums[1]);
  const float root = tile::sqrt(sum_scaled_normed_x_minus_h_plus_squared);  // [M]
  const auto normed_scaled_normed_x_minus_h_plus =
      tile::div<float>(scaled_normed_x_minus_h_plus, root);
  tile::store_line<Lines>(out + token * K, normed_scaled_normed_x_minus_h_plus);  // [M, K]
}

template <class Knobs>
cudaError_t launch(const LaunchArgs& args, cudaStream_t stream) {
  const tile::Grid grid{args.dims[0], 1, kThreads<Knobs>, 0};
  return tile::launch(ntrans<Knobs>, grid, args, stream);
}

}  // namespace

cudaError_t ntrans_K72_fp16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  return launch<AnyM>(args, stream);
}

}  // namespace mirage::generated
