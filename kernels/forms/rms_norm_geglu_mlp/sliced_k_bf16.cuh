// mirage-kernels generate rms_norm_geglu_mlp
// Schedule  sliced-K: each warp of a block streams its own slice of the depth; they add up their
//           sums after the loop.
// Formula   [M, N] = gelu_tanh(linear(rms_norm(x), gate_weight)) * linear(rms_norm(x), up_weight)
// Expects   x [M, K] rows 16-byte aligned, any row stride, norm_weight [K] contiguous, gate_weight
//           [N, K] contiguous, up_weight [N, K] contiguous, out [M, N] contiguous; any M >= 0.
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
  tile::TokenFrag<T, Config::kTokens, kDepth> x_tile;        // [M, K]
  tile::DepthFrag<T, kDepth> norm_weight_tile;               // [K]
  tile::RowFrag<T, Config::kRows, kDepth> gate_weight_tile;  // [N, K]
  tile::RowFrag<T, Config::kRows, kDepth> up_weight_tile;    // [N, K]
};

// Shared memory in bytes: the pipeline's stages, and after the loop the partial sums.
template <class Config>
struct SharedMap {
  using Steps = tile::StageBuffers<Step<Config>, Config::kStages, Config::kWarps>;
  using XSquared = tile::TokenPartials<Config::kTokens, Config::kWarps>;
  using ScaledXProduct = tile::AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>;
  using ScaledXProduct2 = tile::AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>;
  static constexpr int kStepsAt = 0;                                        // during the loop
  static constexpr int kXSquaredAt = 0;                                     // after the loop
  static constexpr int kScaledXProductAt = kXSquaredAt + XSquared::kBytes;  // after the loop
  static constexpr int kScaledXProduct2At = kScaledXProductAt + ScaledXProduct::kBytes;
  static constexpr int kPartialsBytes = kScaledXProduct2At + ScaledXProduct2::kBytes;
  static constexpr int kBytes = tile::larger(Steps::kBytes, kPartialsBytes);
};

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>, 1)
    rms_norm_geglu_mlp(const __grid_constant__ LaunchArgs args) {
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
  const T* gate_weight = static_cast<const T*>(args.inputs[2]);  // [N, K]
  const T* up_weight = static_cast<const T*>(args.inputs[3]);    // [N, K]
  T* out = static_cast<T*>(args.outputs[0]);                     // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float eps = args.scalars[0];
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;

  const auto x_edge =
      tile::lane_edge<Step, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto norm_weight_edge = tile::depth_edge<kEvenDepth>(norm_weight, K);
  const auto gate_weight_edge =
      tile::edge<kEvenRows, kEvenDepth>(gate_weight, tile::Static<K>{}, {first_row, N, K});
  const auto up_weight_edge =
      tile::edge<kEvenRows, kEvenDepth>(up_weight, tile::Static<K>{}, {first_row, N, K});

  tile::TokenPartial<kTokens> x_squared;           // [M]
  tile::Accum<kRows, kTokens> scaled_x_product;    // [N, M]
  tile::Accum<kRows, kTokens> scaled_x_product_2;  // [N, M]

  const auto copy_weights = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kKeep>(buffer, &Step::norm_weight_tile, norm_weight_edge, k);
    tile::copy<tile::Cache::kStream>(buffer, &Step::gate_weight_tile, gate_weight_edge, k);
    tile::copy<tile::Cache::kStream>(buffer, &Step::up_weight_tile, up_weight_edge, k);
  };
  const auto copy_tokens = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kKeep>(buffer, &Step::x_tile, x_edge, k);
  };
  const auto compute = [&](const Step& step) {
    const auto x_squared_terms = tile::mul<float>(step.x_tile, step.x_tile);  // [M, K]
    tile::sum_depth(x_squared, x_squared_terms);                              // [M]
    const auto scaled_x = tile::mul<T>(step.x_tile, step.norm_weight_tile);   // [M, K]
    tile::contract(scaled_x_product, step.up_weight_tile, scaled_x);          // [N, M]
    tile::contract(scaled_x_product_2, step.gate_weight_tile, scaled_x);      // [N, M]
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  tile::pipeline<Config::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                        compute);
  __syncthreads();

  const auto x_squared_parts =
      tile::store_partials<kWarps>(shared + Shared::kXSquaredAt, x_squared);
  const auto scaled_x_product_parts =
      tile::store_partials<kWarps>(shared + Shared::kScaledXProductAt, scaled_x_product);
  const auto scaled_x_product_2_parts =
      tile::store_partials<kWarps>(shared + Shared::kScaledXProduct2At, scaled_x_product_2);
  __syncthreads();

  const tile::OutputTile out_tile{first_row, N, first_token, M};
  tile::for_each_element<kRows, kTokens, kThreads>(out_tile, [&](tile::Element e) {
    const float x_squared_total = tile::sum_over_warps(x_squared_parts, e);                // [M]
    const float mean_x_squared = tile::div(x_squared_total, K);                            // [M]
    const float mean_x_squared_plus_eps = tile::add(eps, mean_x_squared);                  // [M]
    const tile::Root root = tile::sqrt(mean_x_squared_plus_eps);                           // [M]
    const float scaled_x_product_total = tile::sum_over_warps(scaled_x_product_parts, e);  // [N, M]
    const float scaled_x_product_2_total = tile::sum_over_warps(scaled_x_product_2_parts, e);
    const float normed_scaled_x_product = tile::div(scaled_x_product_total, root);      // [N, M]
    const float normed_scaled_x_product_2 = tile::div(scaled_x_product_2_total, root);  // [N, M]
    const float gelu_tanh = tile::gelu_tanh(normed_scaled_x_product_2);                 // [N, M]
    const float normed_scaled_x_product_times_gelu_tanh =
        tile::mul(normed_scaled_x_product, gelu_tanh);
    tile::store(out, out_tile, e, normed_scaled_x_product_times_gelu_tanh);  // [M, N]
  });
}

template <class... Knobs>
cudaError_t launch(SlicedK<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = SlicedK<Knobs...>;
  constexpr int N = Config::N;
  const tile::Grid grid = tile::tile_grid<Config>(args.dims[0], N, SharedMap<Config>::kBytes);
  return tile::launch(rms_norm_geglu_mlp<Config>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
