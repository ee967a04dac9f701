// mirage-kernels generate lora_linear_full
// Schedule  sliced-K: each warp of a block streams its own slice of the depth; they add up their
//           sums after the loop.
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias
// Expects   x [M, K] rows 16-byte aligned, any row stride, weight [N, K] contiguous, lora_a
//           [slices, R, K] contiguous, lora_b [slices, N, R] contiguous, bias [N] contiguous, out
//           [M, N] contiguous; any M >= 0. Every token has its own slices of lora_a and lora_b: a
//           number per token, int32 or int64; any that is none's: no slice.
#pragma once

#include "tile/batched_lora/lora.cuh"
#include "tile/tile.cuh"
#include "variants.h"

#include "producers.cuh"

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
  using T = typename Config::T;
  static constexpr int R = Config::R;
  using Steps = tile::StageBuffers<Step<Config>, Config::kStages, Config::kWarps>;
  using WeightProduct = tile::AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>;
  using LoraBTile = tile::SlicePipeline<T, Config::kRows, R, Config::kSlices>;
  using LoraAProductTotalKept = tile::Resident<T, Config::kTokens, R>;
  using LoraAProductProduct = tile::AccumPartials<Config::kRows, Config::kTokens, 1>;
  static constexpr int kLoraBTileAt = 0;  // from the start
  static constexpr int kLoraAProductTotalKeptAt = kLoraBTileAt + LoraBTile::kBytes;
  static constexpr int kLoraAProductProductAt =
      kLoraAProductTotalKeptAt + LoraAProductTotalKept::kBytes;
  static constexpr int kStepsAt = kLoraAProductProductAt + LoraAProductProduct::kBytes;
  static constexpr int kWeightProductAt = kLoraAProductProductAt + LoraAProductProduct::kBytes;
  static constexpr int kPartialsBytes = kWeightProductAt + WeightProduct::kBytes;
  static constexpr int kBytes = tile::larger(kStepsAt + Steps::kBytes, kPartialsBytes);
};

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config> + tile::kWarpLanes, 1)
    lora_linear_batched(const __grid_constant__ LaunchArgs args) {
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

  const T* x = static_cast<const T*>(args.inputs[0]);       // [M, K]
  const T* weight = static_cast<const T*>(args.inputs[1]);  // [N, K]
  const T* lora_b = static_cast<const T*>(args.inputs[3]);  // [slices, N, R]
  const T* bias = static_cast<const T*>(args.inputs[4]);    // [N]
  T* out = static_cast<T*>(args.outputs[0]);                // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float scale = args.scalars[0];
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;

  if (tile::warp_index() == kWarps) {
    const typename Shared::LoraBTile lora_b_tile{shared + Shared::kLoraBTileAt};
    const typename Shared::LoraAProductTotalKept lora_a_product_total_kept{
        shared + Shared::kLoraAProductTotalKeptAt};
    const tile::OutputTile out_tile{first_row, N, first_token, M};
    tile::contract_adapters(shared + Shared::kLoraAProductProductAt, lora_b_tile,
                            lora_a_product_total_kept, args, lora_b, out_tile);
    tile::sync_intermediate<kWarps>();
    return;
  }
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
  const tile::Steps steps{first_k, K, kWarps * kDepth, tile::Start::at_once()};
  tile::pipeline<Config::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                        compute);
  tile::sync_pipelines<kWarps>();

  const auto weight_product_parts =
      tile::store_partials<kWarps>(shared + Shared::kWeightProductAt, weight_product);
  tile::sync_intermediate<kWarps>();

  const auto lora_a_product_product_parts =
      Shared::LoraAProductProduct::in(shared + Shared::kLoraAProductProductAt);
  const tile::OutputTile out_tile{first_row, N, first_token, M};
  tile::for_each_element<kRows, kTokens, kThreads>(out_tile, [&](tile::Element e) {
    const float bias_tile = tile::load_row(bias, out_tile, e);                         // [N]
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float lora_a_product_product = tile::sum_over_warps(lora_a_product_product_parts, e);
    const float weight_product_plus_bias = tile::add(bias_tile, weight_product_total);     // [N, M]
    const float scaled_lora_a_product_product = tile::mul(scale, lora_a_product_product);  // [N, M]
    const float scaled_lora_a_product_product_plus =
        tile::add(weight_product_plus_bias, scaled_lora_a_product_product);
    tile::store(out, out_tile, e, scaled_lora_a_product_product_plus);  // [M, N]
  });
}

template <class... Knobs>
cudaError_t launch(SlicedK<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = SlicedK<Knobs...>;
  constexpr int N = Config::N;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  const int64_t row_tiles = tile::ceil_div(N, Config::kRows);
  const int64_t token_tiles = tile::ceil_div(args.dims[0], Config::kTokens);
  constexpr int kSharedBytes = tile::larger(SharedMap<Config>::kBytes, tile::kExclusiveBytes);
  const tile::Grid grid{row_tiles, token_tiles, kThreads + tile::kWarpLanes, kSharedBytes};
  return tile::launch(lora_linear_batched<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
