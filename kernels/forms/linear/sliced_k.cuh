// mirage-kernels generate linear
// Schedule  sliced-K: each warp of a block streams its own slice of the depth; they add up their
//           sums after the loop.
// Formula   [M, N] = residual + linear(x, weight) + bias
// Expects   x [M, K] rows 16-byte aligned, any row stride, weight [N, K] contiguous, bias [N]
//           contiguous, residual [M, N] contiguous, out [M, N] contiguous; any M >= 0.
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
  tile::RowFrag<T, Config::kRows, kDepth> weight_tile;  // [N, K]
};

// Shared memory in bytes: the pipeline's stages, and after the loop the partial sums.
template <class Config>
struct SharedMap {
  using Steps = tile::StageBuffers<Step<Config>, Config::kStages, Config::kWarps>;
  using WeightProduct = tile::AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>;
  static constexpr int kStepsAt = 0;          // during the loop
  static constexpr int kWeightProductAt = 0;  // after the loop
  static constexpr int kPartialsBytes = kWeightProductAt + WeightProduct::kBytes;
  static constexpr int kBytes = tile::larger(Steps::kBytes, kPartialsBytes);
};

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    linear(const __grid_constant__ LaunchArgs args) {
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

  const T* x = static_cast<const T*>(args.inputs[0]);         // [M, K]
  const T* weight = static_cast<const T*>(args.inputs[1]);    // [N, K]
  const T* bias = static_cast<const T*>(args.inputs[2]);      // [N]
  const T* residual = static_cast<const T*>(args.inputs[3]);  // [M, N]
  T* out = static_cast<T*>(args.outputs[0]);                  // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;

  const auto x_edge =
      tile::lane_edge<Step, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto weight_edge =
      tile::edge<kEvenRows, kEvenDepth>(weight, tile::Static<K>{}, {first_row, N, K});

  tile::Accum<kRows, kTokens> weight_product;  // [M, N]

  const auto copy_weights = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kStream>(buffer, &Step::weight_tile, weight_edge, k);
  };
  const auto copy_tokens = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kKeep>(buffer, &Step::x_tile, x_edge, k);
  };
  const auto compute = [&](const Step& step) {
    tile::contract(weight_product, step.weight_tile, step.x_tile);  // [M, N]
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  const tile::OutputTile out_tile{first_row, N, first_token, M};
  auto bias_tile_early = tile::early_row<kRows, kTokens, kThreads>(out_tile, bias);
  auto residual_tile_early =
      tile::early_element<kRows, kTokens, kThreads>(out_tile, residual, args.row_strides[3]);
  const auto early = tile::behind_copies([&] {
    bias_tile_early.ask();
    residual_tile_early.ask();
  });
  tile::pipeline<Config::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                        early, compute);
  __syncthreads();

  const auto weight_product_parts =
      tile::store_partials<kWarps>(shared + Shared::kWeightProductAt, weight_product);
  __syncthreads();

  tile::for_each_element<kRows, kTokens, kThreads>(out_tile, [&](tile::Element e) {
    const float bias_tile = tile::early_value(bias_tile_early, e);                     // [N]
    const float residual_tile = tile::early_value(residual_tile_early, e);             // [M, N]
    const float residual_plus_bias = tile::add(bias_tile, residual_tile);              // [N, M]
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float residual_plus_bias_plus_weight_product =
        tile::add(residual_plus_bias, weight_product_total);
    tile::store(out, out_tile, e, residual_plus_bias_plus_weight_product);  // [M, N]
  });
}

template <class... Knobs>
cudaError_t launch(SlicedK<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = SlicedK<Knobs...>;
  constexpr int N = Config::N;
  const tile::Grid grid = tile::tile_grid<Config>(args.dims[0], N, SharedMap<Config>::kBytes);
  return tile::launch(linear<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
