// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype fp16 --shape K=8192,N=10240
//
// Slices  each warp of a block streams a slice of the depth; their sums meet after the loop. What
//         K8192_N10240_fp16.cu launches: up to 8 tokens: 256 blocks of 4 warps, 112 KiB shared; up
//         to 16 tokens: 128 blocks of 4 warps, 208 KiB shared.
#pragma once

#include "tile/tile.cuh"

#include "K8192_N10240_fp16.shape.cuh"

namespace mirage::generated {
namespace {

// What a warp copies per step of the loop.
template <class Knobs>
struct Step {
  static constexpr int kDepth = Knobs::kChunks * tile::kChunkDepth;
  tile::TokenFrag<T, Knobs::kTokens, kDepth> x_tile;   // [M, K]
  tile::DepthFrag<T, kDepth> norm_weight_tile;         // [K]
  tile::RowFrag<T, Knobs::kRows, kDepth> weight_tile;  // [N, K]
};

// Shared memory in bytes: the ring of steps, and after the loop the partial sums.
template <class Knobs>
struct SharedMap {
  using Steps = tile::Ring<Step<Knobs>, Knobs::kStages, Knobs::kWarps>;
  using XSquared = tile::TokenMeeting<Knobs::kTokens, Knobs::kWarps>;
  using ScaledProduct = tile::AccumMeeting<Knobs::kRows, Knobs::kTokens, Knobs::kWarps>;
  static constexpr int kStepsAt = 0;                                       // during the loop
  static constexpr int kXSquaredAt = 0;                                    // after the loop
  static constexpr int kScaledProductAt = kXSquaredAt + XSquared::kBytes;  // after the loop
  static constexpr int kMeetingBytes = kScaledProductAt + ScaledProduct::kBytes;
  static constexpr int kBytes = tile::larger(Steps::kBytes, kMeetingBytes);
};

template <class Knobs>
__global__ void __launch_bounds__(kThreads<Knobs>, 1)
    rms_norm_linear(const __grid_constant__ LaunchArgs args) {
  constexpr int kRows = Knobs::kRows, kTokens = Knobs::kTokens, kWarps = Knobs::kWarps;
  using Step = generated::Step<Knobs>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = N % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  using Shared = SharedMap<Knobs>;
  extern __shared__ __align__(16) char shared[];
  tile::let_next_start();

  const T* x = static_cast<const T*>(args.inputs[0]);            // [M, K]
  const T* norm_weight = static_cast<const T*>(args.inputs[1]);  // [K]
  const T* weight = static_cast<const T*>(args.inputs[2]);       // [N, K]
  T* out = static_cast<T*>(args.outputs[0]);                     // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float eps = args.scalars[0];
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;

  const auto x_edge = tile::edge<false, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto norm_weight_edge = tile::depth_edge<kEvenDepth>(norm_weight, K);
  const auto weight_edge =
      tile::edge<kEvenRows, kEvenDepth>(weight, tile::Static<K>{}, {first_row, N, K});

  tile::TokenPartial<kTokens> x_squared;       // [M]
  tile::Accum<kRows, kTokens> scaled_product;  // [M, N]

  const auto copy_weights = [&](tile::Slot<Step> slot, int k) {
    tile::copy<tile::Cache::kKeep>(slot, &Step::norm_weight_tile, norm_weight_edge, k);
    tile::copy<tile::Cache::kStream>(slot, &Step::weight_tile, weight_edge, k);
  };
  const auto copy_tokens = [&](tile::Slot<Step> slot, int k) {
    tile::copy<tile::Cache::kKeep>(slot, &Step::x_tile, x_edge, k);
  };
  const auto compute = [&](const Step& step) {
    const auto x_squared_terms = tile::mul<float>(step.x_tile, step.x_tile);           // [M, K]
    tile::sum_depth(x_squared, x_squared_terms);                                       // [M]
    const auto scaled_weight = tile::mul<T>(step.weight_tile, step.norm_weight_tile);  // [K, N]
    tile::contract(scaled_product, scaled_weight, step.x_tile);                        // [M, N]
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  tile::pipeline<Knobs::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                       compute);
  __syncthreads();

  const auto x_squared_parts = tile::meet<kWarps>(shared + Shared::kXSquaredAt, x_squared);
  const auto scaled_product_parts =
      tile::meet<kWarps>(shared + Shared::kScaledProductAt, scaled_product);
  __syncthreads();

  const tile::OutputTile out_tile{first_row, N, first_token, M};
  tile::for_each_element<kRows, kTokens, kThreads<Knobs>>(out_tile, [&](tile::Element e) {
    const float x_squared_total = tile::sum_over_warps(x_squared_parts, e);            // [M]
    const float scaled_product_total = tile::sum_over_warps(scaled_product_parts, e);  // [M, N]
    const float mean_x_squared = tile::div(x_squared_total, K);                        // [M]
    const float mean_x_squared_plus_eps = tile::add(eps, mean_x_squared);              // [M]
    const float root = tile::sqrt(mean_x_squared_plus_eps);                            // [M]
    const float normed_scaled_product = tile::div(scaled_product_total, root);         // [M, N]
    tile::store(out, out_tile, e, normed_scaled_product);                              // [M, N]
  });
}

template <class Knobs>
cudaError_t launch(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t row_tiles = tile::ceil_div(N, Knobs::kRows);
  const int64_t token_tiles = tile::ceil_div(args.dims[0], Knobs::kTokens);
  constexpr int kSharedBytes = SharedMap<Knobs>::kBytes;
  const tile::Grid grid{row_tiles, token_tiles, kThreads<Knobs>, kSharedBytes};
  return tile::launch(rms_norm_linear<Knobs>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
