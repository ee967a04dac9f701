// mirage-kernels generate rms_norm_linear_full
// Schedule  cluster split-K: two blocks of a cluster share rows and split the depth.
// Formula   [M, N] = linear(rms_norm(x, norm_weight + weight_offset), weight) + bias
#pragma once

#include "tile/cluster_split_k/reduce.cuh"
#include "tile/cluster_split_k/steps.cuh"
#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

// Many tokens: the two blocks of a cluster share rows and split the depth.
template <class Config>
struct ClusterSplitKPlan : Config {
  using Element = typename Config::T;
  static constexpr int kDepth = Config::K, kRowTensors = 1, kVectors = 1;
  static constexpr bool kTransforms = true, kRewrites = false;
  static constexpr int kProducts = 1, kTokenSums = 1;
};
template <class Config>
using ClusterSplitKBlock = tile::ClusterSplitKBlock<ClusterSplitKPlan<Config>>;

template <class Config>
__global__ void __cluster_dims__(tile::kClusterBlocks, 1, 1)
    __launch_bounds__(ClusterSplitKBlock<Config>::kThreads, 1)
        rms_norm_linear_full_cluster_split_k(const __grid_constant__ tile::TmaArgs<2> given) {
  using T = typename Config::T;
  constexpr int K = Config::K, N = Config::N;
  using Block = ClusterSplitKBlock<Config>;
  extern __shared__ __align__(tile::kSwizzleAtomBytes) char stages[];
  char* const shared = stages;
  tile::launch_dependents();
  const Block block{shared, tile::cluster_rank(), tile::token_lines<Block>(given.call.dims[0])};
  block.begin();

  const LaunchArgs& args = given.call;
  const T* norm_weight = static_cast<const T*>(args.inputs[1]);  // [K]
  const T* bias = static_cast<const T*>(args.inputs[3]);         // [N]
  T* out = static_cast<T*>(args.outputs[0]);                     // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float eps = args.scalars[0];
  const float weight_offset = args.scalars[1];
  const int first_row = blockIdx.x / tile::kClusterBlocks * Block::kRows;
  const int first_token = blockIdx.y * Block::kTokens;

  tile::TokenPartial<Block::kTokens / tile::kGroupWarps> x_squared;  // [M]
  tile::WideAccum<Block::kTiles, Block::kTokens> scaled_product;     // [M, N]

  if (block.is_producer()) {
    const auto copy_vectors = [&](int k) { block.copy_vector(0, norm_weight, k); };
    const auto prefetch_weights = [&](int k) { tile::prefetch_tile(given.maps[1], first_row, k); };
    const auto copy_weights = [&](const auto& buffer, int k) {
      tile::copy_tile_once(buffer.rows(0), given.maps[1], first_row, k, buffer.full);
    };
    const auto copy_tokens = [&](const auto& buffer, int k) {
      tile::copy_tile(buffer.tokens(), given.maps[0], first_token, k, buffer.full);
    };
    block.copy(args.constant_weights, prefetch_weights, copy_vectors, copy_weights, copy_tokens);
    return;
  }
  if (block.transforms()) {
    tile::transform_tokens(block, false, [&](const auto& step) {
      const auto x_tile = step.tokens();                              // [M, K]
      const auto x_squared_terms = tile::mul<float>(x_tile, x_tile);  // [M, K]
      tile::sum_depth(x_squared, x_squared_terms);                    // [M]
    });
  } else {
    tile::multiply(block, true, [&](const auto& step) {
      const auto x_tile = step.token_tma();          // [M, K]
      const auto norm_weight_tile = step.vector(0);  // [K]
      const auto weight_tile = step.rows(0);         // [N, K]
      const auto weight_offset_plus_norm_weight = tile::add<float>(norm_weight_tile, weight_offset);
      const auto scaled_weight = tile::mul<T>(weight_tile, weight_offset_plus_norm_weight);
      tile::contract(scaled_product, scaled_weight, x_tile);  // [M, N]
    });
  }

  const auto x_squared_parts = tile::store_partials(block, 0, x_squared);
  auto scaled_product_parts = tile::store_partials(block, 0, scaled_product);
  const tile::OutputTile out_tile{first_row, N, first_token + block.rank * Block::kHalf, M};
  const auto bias_tile_early = tile::load_owned_rows(block, out_tile, bias);
  tile::wait_for_partials(block);
  if (!block.finishes(M - first_token)) return;
  tile::add_partials(block, 0, scaled_product_parts);

  const auto finish = [&](tile::OwnedElement e) {
    const float bias_tile = tile::early_value(bias_tile_early, e);                         // [N]
    const float x_squared_total = tile::sum_over_warps(x_squared_parts, e);                // [M]
    const float scaled_product_total = tile::sum_over_warps(scaled_product_parts, e);      // [M, N]
    const float mean_x_squared = tile::div(x_squared_total, K);                            // [M]
    const float mean_x_squared_plus_eps = tile::add(eps, mean_x_squared);                  // [M]
    const tile::Root root = tile::sqrt(mean_x_squared_plus_eps);                           // [M]
    const float normed_scaled_product = tile::div(scaled_product_total, root);             // [M, N]
    const float normed_scaled_product_plus = tile::add(bias_tile, normed_scaled_product);  // [N, M]
    tile::store(out, out_tile, e, normed_scaled_product_plus);                             // [M, N]
  };
  tile::for_each_owned(block, out_tile, out, finish);
}

template <class... Knobs>
cudaError_t launch(ClusterSplitK<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = ClusterSplitK<Knobs...>;
  using T = typename Config::T;
  constexpr int K = Config::K, N = Config::N;
  using Block = ClusterSplitKBlock<Config>;
  const int64_t tokens = args.dims[0];
  const tile::TiledTensor tensors[] = {
      {{args.inputs[0], tokens, K, args.row_strides[0]}, tile::token_lines<Block>(tokens)},
      {{args.inputs[2], N, K, K}, Block::kRows},  // weight
  };
  const tile::Grid grid = tile::tma_grid<Block>(tokens, N, tile::kClusterBlocks);
  return tile::launch_tma<T>(rms_norm_linear_full_cluster_split_k<Config>, grid, args, tensors,
                             stream);
}

}  // namespace
}  // namespace mirage::generated
