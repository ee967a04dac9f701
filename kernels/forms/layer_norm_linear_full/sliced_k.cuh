// mirage-kernels generate layer_norm_linear_full
// Schedule  sliced-K: each warp of a block streams its own slice of the depth; they add up their
//           sums after the loop.
// Formula   [M, N] = linear(layer_norm(x, eps) * norm_weight + norm_bias, weight) + bias
// Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, norm_bias
//           [K] contiguous, weight [N, K] contiguous, bias [N] contiguous, out [M, N] contiguous;
//           any M >= 0.
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
  tile::TokenFrag<T, Config::kTokens, kDepth> x_tile_2;  // [M, K]
  tile::DepthFrag<T, kDepth> norm_weight_tile;           // [K]
  tile::DepthFrag<T, kDepth> norm_bias_tile;             // [K]
  tile::RowFrag<T, Config::kRows, kDepth> weight_tile;   // [N, K]
};

// Shared memory in bytes: the pipeline's stages, and after the loop the partial sums.
template <class Config>
struct SharedMap {
  using Steps = tile::StageBuffers<Step<Config>, Config::kStages, Config::kWarps>;
  using ScaledNormedXTile2MinusMeanXPlusProduct =
      tile::AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>;
  using MeanXKept = tile::TokenTable<Config::kTokens>;
  using RootKept = tile::TokenTable<Config::kTokens>;
  static constexpr int kMeanXKeptAt = 0;                                // from the start
  static constexpr int kRootKeptAt = kMeanXKeptAt + MeanXKept::kBytes;  // from the start
  static constexpr int kStepsAt = kRootKeptAt + RootKept::kBytes;       // during the loop
  static constexpr int kScaledNormedXTile2MinusMeanXPlusProductAt = kRootKeptAt + RootKept::kBytes;
  static constexpr int kPartialsBytes =
      kScaledNormedXTile2MinusMeanXPlusProductAt + ScaledNormedXTile2MinusMeanXPlusProduct::kBytes;
  static constexpr int kBytes = tile::larger(kStepsAt + Steps::kBytes, kPartialsBytes);
};

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    layer_norm_linear_full(const __grid_constant__ LaunchArgs args) {
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
  const T* norm_bias = static_cast<const T*>(args.inputs[2]);    // [K]
  const T* weight = static_cast<const T*>(args.inputs[3]);       // [N, K]
  const T* bias = static_cast<const T*>(args.inputs[4]);         // [N]
  T* out = static_cast<T*>(args.outputs[0]);                     // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float eps = args.scalars[0];
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;

  const auto x_edge =
      tile::lane_edge<Step, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto norm_weight_edge = tile::depth_edge<kEvenDepth>(norm_weight, K);
  const auto norm_bias_edge = tile::optional_edge(norm_bias, K);
  const auto weight_edge =
      tile::edge<kEvenRows, kEvenDepth>(weight, tile::Static<K>{}, {first_row, N, K});

  tile::Accum<kRows, kTokens> scaled_normed_x_tile_2_minus_mean_x_plus_product;  // [N, M]

  const auto copy_weights = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kKeep>(buffer, &Step::norm_weight_tile, norm_weight_edge, k);
    tile::copy<tile::Cache::kKeep>(buffer, &Step::norm_bias_tile, norm_bias_edge, k);
    tile::copy<tile::Cache::kStream>(buffer, &Step::weight_tile, weight_edge, k);
  };
  const auto copy_tokens = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kKeep>(buffer, &Step::x_tile_2, x_edge, k);
  };
  using Lines = tile::Lines<K, tile::kWarpLanes>;
  const auto mean_x_kept = Shared::MeanXKept::at_bytes(shared + Shared::kMeanXKeptAt);
  const auto root_kept = Shared::RootKept::at_bytes(shared + Shared::kRootKeptAt);
  tile::Line<Lines, T> x_tile;  // [M, K]
  const auto load_lines = [&](int token) {
    x_tile = tile::load_line<Lines>(tile::line_of(x, args.row_strides[0], first_token + token, M));
  };
  const auto compute_statistics = [&](int token) {
    const float sum_x = tile::sum_line<Lines>(x_tile);                                     // [M]
    const float mean_x = tile::div(sum_x, K);                                              // [M]
    const auto x_minus_mean_x = tile::sub<float>(x_tile, mean_x);                          // [M, K]
    const auto x_minus_mean_x_squared = tile::mul<float>(x_minus_mean_x, x_minus_mean_x);  // [M, K]
    const float sum_x_minus_mean_x_squared = tile::sum_line<Lines>(x_minus_mean_x_squared);
    const float mean_x_minus_mean_x_squared = tile::div(sum_x_minus_mean_x_squared, K);  // [M]
    const float mean_x_minus_mean_x_squared_plus = tile::add(eps, mean_x_minus_mean_x_squared);
    const tile::Root root = tile::sqrt(mean_x_minus_mean_x_squared_plus);  // [M]
    tile::store_resident(mean_x_kept, token, mean_x);                      // [M]
    tile::store_resident(root_kept, token, root);                          // [M]
  };
  const auto statistics = tile::token_pass<kTokens, kWarps>(load_lines, compute_statistics);
  const auto compute = [&](const Step& step) {
    const auto mean_x = tile::token_values(mean_x_kept);                         // [M]
    const auto x_tile_2_minus_mean_x = tile::sub<float>(step.x_tile_2, mean_x);  // [M, K]
    const auto root = tile::token_values(root_kept);                             // [M]
    const auto normed_x_tile_2_minus_mean_x = tile::div<float>(x_tile_2_minus_mean_x, root);
    const auto scaled_normed_x_tile_2_minus_mean_x =
        tile::mul<float>(normed_x_tile_2_minus_mean_x, step.norm_weight_tile);
    const auto scaled_normed_x_tile_2_minus_mean_x_plus =
        tile::add<T>(scaled_normed_x_tile_2_minus_mean_x, step.norm_bias_tile);
    tile::contract(scaled_normed_x_tile_2_minus_mean_x_plus_product, step.weight_tile,
                   scaled_normed_x_tile_2_minus_mean_x_plus);
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  tile::pipeline<Config::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                        statistics, compute);
  __syncthreads();

  const auto scaled_normed_x_tile_2_minus_mean_x_plus_product_parts =
      tile::store_partials<kWarps>(shared + Shared::kScaledNormedXTile2MinusMeanXPlusProductAt,
                                   scaled_normed_x_tile_2_minus_mean_x_plus_product);
  __syncthreads();

  const tile::OutputTile out_tile{first_row, N, first_token, M};
  tile::for_each_element<kRows, kTokens, kThreads>(out_tile, [&](tile::Element e) {
    const float bias_tile = tile::load_row(bias, out_tile, e);  // [N]
    const float scaled_normed_x_tile_2_minus_mean_x_plus_product_total =
        tile::sum_over_warps(scaled_normed_x_tile_2_minus_mean_x_plus_product_parts, e);
    const float scaled_normed_x_tile_2_minus_mean_x_plus_product_plus =
        tile::add(bias_tile, scaled_normed_x_tile_2_minus_mean_x_plus_product_total);
    tile::store(out, out_tile, e, scaled_normed_x_tile_2_minus_mean_x_plus_product_plus);  // [M, N]
  });
}

template <class... Knobs>
cudaError_t launch(SlicedK<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = SlicedK<Knobs...>;
  constexpr int N = Config::N;
  const tile::Grid grid = tile::tile_grid<Config>(args.dims[0], N, SharedMap<Config>::kBytes);
  return tile::launch(layer_norm_linear_full<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
