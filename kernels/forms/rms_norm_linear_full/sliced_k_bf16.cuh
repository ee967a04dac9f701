// mirage-kernels generate rms_norm_linear_full
// Schedule  sliced-K: each warp of a block streams its own slice of the depth; they add up their
//           sums after the loop.
// Formula   [M, N] = linear(rms_norm(x, norm_weight + weight_offset), weight) + bias
// Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, weight [N,
//           K] contiguous, bias [N] contiguous, out [M, N] contiguous; any M >= 0.
#pragma once

#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

// What a warp copies per step of the loop.
template <class Config>
struct Step {
  using T = typename Config::T;
  static constexpr int kDepth = Config::kChunks * tile::kChunkDepth;
  tile::TokenFrag<T, Config::kTokens, kDepth> x_tile;   // [M, K]
  tile::DepthFrag<T, kDepth> norm_weight_tile;          // [K]
  tile::RowFrag<T, Config::kRows, kDepth> weight_tile;  // [N, K]
};

// Shared memory in bytes: the pipeline's stages, and after the loop the partial sums.
template <class Config>
struct SharedMap {
  using Steps = tile::StageBuffers<Step<Config>, Config::kStages, Config::kWarps>;
  using XSquared = tile::TokenPartials<Config::kTokens, Config::kWarps>;
  using ScaledXProduct = tile::AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>;
  static constexpr int kStepsAt = 0;                                        // during the loop
  static constexpr int kXSquaredAt = 0;                                     // after the loop
  static constexpr int kScaledXProductAt = kXSquaredAt + XSquared::kBytes;  // after the loop
  static constexpr int kPartialsBytes = kScaledXProductAt + ScaledXProduct::kBytes;
  static constexpr int kBytes = tile::larger(Steps::kBytes, kPartialsBytes);
};

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    rms_norm_linear_full(const __grid_constant__ LaunchArgs args) {
  using T = typename Config::T;
  constexpr int K = Config::K, N = Config::N;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  constexpr int kRows = Config::kRows, kTokens = Config::kTokens, kWarps = Config::kWarps;
  using Step = generated::Step<Config>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = N % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  using Shared = SharedMap<Config>;
  extern __shared__ __align__(16) char shared[];
  tile::launch_dependents();

  const T* x = static_cast<const T*>(args.inputs[0]);            // [M, K]
  const T* norm_weight = static_cast<const T*>(args.inputs[1]);  // [K]
  const T* weight = static_cast<const T*>(args.inputs[2]);       // [N, K]
  const T* bias = static_cast<const T*>(args.inputs[3]);         // [N]
  T* out = static_cast<T*>(args.outputs[0]);                     // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float eps = args.scalars[0];
  const float weight_offset = args.scalars[1];
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;

  const auto x_edge =
      tile::lane_edge<Step, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto norm_weight_edge = tile::depth_edge<kEvenDepth>(norm_weight, K);
  const auto weight_edge =
      tile::edge<kEvenRows, kEvenDepth>(weight, tile::Static<K>{}, {first_row, N, K});

  tile::TokenPartial<kTokens> x_squared;         // [M]
  tile::Accum<kRows, kTokens> scaled_x_product;  // [N, M]

  const auto copy_weights = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kKeep>(buffer, &Step::norm_weight_tile, norm_weight_edge, k);
    tile::copy<tile::Cache::kStream>(buffer, &Step::weight_tile, weight_edge, k);
  };
  const auto copy_tokens = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kKeep>(buffer, &Step::x_tile, x_edge, k);
  };
  const auto compute = [&](const Step& step) {
    const auto x_squared_terms = tile::mul<float>(step.x_tile, step.x_tile);  // [M, K]
    tile::sum_depth(x_squared, x_squared_terms);                              // [M]
    const auto weight_offset_plus_norm_weight =
        tile::add<float>(step.norm_weight_tile, weight_offset);
    const auto scaled_x = tile::mul<T>(step.x_tile, weight_offset_plus_norm_weight);  // [M, K]
    tile::contract(scaled_x_product, step.weight_tile, scaled_x);                     // [N, M]
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  const tile::OutputTile out_tile{first_row, N, first_token, M};
  auto bias_tile_early = tile::early_row<kRows, kTokens, kThreads>(out_tile, bias);
  const auto early = tile::behind_copies([&] { bias_tile_early.ask(); });
  tile::pipeline<Config::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                        early, compute);
  __syncthreads();

  const auto x_squared_parts =
      tile::store_partials<kWarps>(shared + Shared::kXSquaredAt, x_squared);
  const auto scaled_x_product_parts =
      tile::store_partials<kWarps>(shared + Shared::kScaledXProductAt, scaled_x_product);
  __syncthreads();

  tile::for_each_element<kRows, kTokens, kThreads>(out_tile, [&](tile::Element e) {
    const float bias_tile = tile::early_value(bias_tile_early, e);                         // [N]
    const float x_squared_total = tile::sum_over_warps(x_squared_parts, e);                // [M]
    const float scaled_x_product_total = tile::sum_over_warps(scaled_x_product_parts, e);  // [N, M]
    const float mean_x_squared = tile::div(x_squared_total, K);                            // [M]
    const float mean_x_squared_plus_eps = tile::add(eps, mean_x_squared);                  // [M]
    const tile::Root root = tile::sqrt(mean_x_squared_plus_eps);                           // [M]
    const float normed_scaled_x_product = tile::div(scaled_x_product_total, root);         // [N, M]
    const float normed_scaled_x_product_plus = tile::add(bias_tile, normed_scaled_x_product);
    tile::store(out, out_tile, e, normed_scaled_x_product_plus);  // [M, N]
  });
}

template <class... Knobs>
cudaError_t launch(SlicedK<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = SlicedK<Knobs...>;
  constexpr int N = Config::N;
  const tile::Grid grid = tile::tile_grid<Config>(args.dims[0], N, SharedMap<Config>::kBytes);
  return tile::launch(rms_norm_linear_full<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
