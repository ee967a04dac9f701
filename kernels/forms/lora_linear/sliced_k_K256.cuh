// mirage-kernels generate lora_linear
// Schedule  sliced-K: each warp of a block streams its own slice of the depth; they add up their
//           sums after the loop.
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)
// Expects   x [M, K] rows 16-byte aligned, any row stride, weight [N, K] contiguous, lora_a [R, K]
//           contiguous, lora_b [N, R] contiguous, out [M, N] contiguous; any M >= 0.
#pragma once

#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

// What a warp copies per step of the loop.
template <class Config>
struct Step {
  using T = typename Config::T;
  static constexpr int R = Config::R;
  static constexpr int kDepth = Config::kChunks * tile::kChunkDepth;
  tile::TokenFrag<T, Config::kTokens, kDepth> x_tile;     // [M, K]
  tile::RowFrag<T, Config::kRows, kDepth> weight_tile;    // [N, K]
  tile::RowFrag<T, tile::padded(R), kDepth> lora_a_tile;  // [R, K]
};

// Shared memory in bytes: the pipeline's stages, and after the loop the partial sums.
template <class Config>
struct SharedMap {
  using T = typename Config::T;
  static constexpr int R = Config::R;
  using Steps = tile::StageBuffers<Step<Config>, Config::kStages, Config::kWarps>;
  using WeightProduct = tile::AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>;
  using LoraAProduct = tile::AccumPartials<tile::padded(R), Config::kTokens, Config::kWarps>;
  using LoraBTile = tile::Resident<T, Config::kRows, R>;
  using LoraAProductTotalKept = tile::Resident<T, Config::kTokens, R>;
  using LoraAProductProduct = tile::AccumPartials<Config::kRows, Config::kTokens, 1>;
  static constexpr int kLoraBTileAt = 0;                                     // from the start
  static constexpr int kStepsAt = kLoraBTileAt + LoraBTile::kBytes;          // during the loop
  static constexpr int kWeightProductAt = kLoraBTileAt + LoraBTile::kBytes;  // after the loop
  static constexpr int kLoraAProductAt = kWeightProductAt + WeightProduct::kBytes;
  static constexpr int kLoraAProductTotalKeptAt = kLoraAProductAt + LoraAProduct::kBytes;
  static constexpr int kLoraAProductProductAt =
      kLoraAProductTotalKeptAt + LoraAProductTotalKept::kBytes;
  static constexpr int kPartialsBytes = kLoraAProductProductAt + LoraAProductProduct::kBytes;
  static constexpr int kBytes = tile::larger(kStepsAt + Steps::kBytes, kPartialsBytes);
};

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    lora_linear(const __grid_constant__ LaunchArgs args) {
  using T = typename Config::T;
  constexpr int K = Config::K, N = Config::N, R = Config::R;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  constexpr int kRows = Config::kRows, kTokens = Config::kTokens, kWarps = Config::kWarps;
  using Step = generated::Step<Config>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = N % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  constexpr bool kEvenR = R % tile::kRowTile == 0;
  using Shared = SharedMap<Config>;
  extern __shared__ __align__(16) char shared[];
  tile::launch_dependents();

  const T* x = static_cast<const T*>(args.inputs[0]);       // [M, K]
  const T* weight = static_cast<const T*>(args.inputs[1]);  // [N, K]
  const T* lora_a = static_cast<const T*>(args.inputs[2]);  // [R, K]
  const T* lora_b = static_cast<const T*>(args.inputs[3]);  // [N, R]
  T* out = static_cast<T*>(args.outputs[0]);                // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float scale = args.scalars[0];
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;

  const auto x_edge =
      tile::lane_edge<Step, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto weight_edge =
      tile::edge<kEvenRows, kEvenDepth>(weight, tile::Static<K>{}, {first_row, N, K});
  const auto lora_a_edge = tile::edge<kEvenR, kEvenDepth>(lora_a, tile::Static<K>{}, {0, R, K});

  tile::Accum<kRows, kTokens> weight_product;            // [M, N]
  tile::Accum<tile::padded(R), kTokens> lora_a_product;  // [M, R]

  if (!args.constant_weights) tile::grid_dependency_wait();
  const typename Shared::LoraBTile lora_b_tile{shared + Shared::kLoraBTileAt};
  tile::fetch<kThreads>(lora_b_tile, lora_b, first_row, N);

  const auto copy_weights = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kStream>(buffer, &Step::weight_tile, weight_edge, k);
    tile::copy<tile::Cache::kKeep>(buffer, &Step::lora_a_tile, lora_a_edge, k);
  };
  const auto copy_tokens = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kKeep>(buffer, &Step::x_tile, x_edge, k);
  };
  const auto compute = [&](const Step& step) {
    tile::contract(weight_product, step.weight_tile, step.x_tile);  // [M, N]
    tile::contract(lora_a_product, step.lora_a_tile, step.x_tile);  // [M, R]
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  tile::pipeline<Config::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                        compute);
  tile::wait_copies<0>();
  __syncthreads();

  const auto weight_product_parts =
      tile::store_partials<kWarps>(shared + Shared::kWeightProductAt, weight_product);
  const auto lora_a_product_parts =
      tile::store_partials<kWarps>(shared + Shared::kLoraAProductAt, lora_a_product);
  __syncthreads();

  const typename Shared::LoraAProductTotalKept lora_a_product_total_kept{
      shared + Shared::kLoraAProductTotalKeptAt};
  const tile::OutputTile r_tile{0, R, first_token, M};
  tile::for_each_element<tile::padded(R), kTokens, kThreads>(r_tile, [&](tile::Element e) {
    const float lora_a_product_total = tile::sum_over_warps(lora_a_product_parts, e);  // [M, R]
    tile::store_resident(lora_a_product_total_kept, e, lora_a_product_total);          // [M, R]
  });
  __syncthreads();

  const auto lora_a_product_product_parts = tile::contract_resident<kWarps>(
      shared + Shared::kLoraAProductProductAt, lora_b_tile, lora_a_product_total_kept);
  __syncthreads();

  const tile::OutputTile out_tile{first_row, N, first_token, M};
  tile::for_each_element<kRows, kTokens, kThreads>(out_tile, [&](tile::Element e) {
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float lora_a_product_product = tile::sum_over_warps(lora_a_product_product_parts, e);
    const float scaled_lora_a_product_product = tile::mul(scale, lora_a_product_product);  // [N, M]
    const float scaled_lora_a_product_product_plus =
        tile::add(weight_product_total, scaled_lora_a_product_product);
    tile::store(out, out_tile, e, scaled_lora_a_product_product_plus);  // [M, N]
  });
}

template <class... Knobs>
cudaError_t launch(SlicedK<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = SlicedK<Knobs...>;
  constexpr int N = Config::N;
  const tile::Grid grid = tile::tile_grid<Config>(args.dims[0], N, SharedMap<Config>::kBytes);
  return tile::launch(lora_linear<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
