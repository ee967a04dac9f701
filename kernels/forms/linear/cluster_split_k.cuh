// mirage-kernels generate linear
// Schedule  cluster split-K: two blocks of a cluster share rows and split the depth.
// Formula   [M, N] = residual + linear(x, weight) + bias
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
  static constexpr int kDepth = Config::K, kRowTensors = 1, kVectors = 0;
  static constexpr bool kTransforms = false, kRewrites = false;
  static constexpr int kProducts = 1, kTokenSums = 0;
};
template <class Config>
using ClusterSplitKBlock = tile::ClusterSplitKBlock<ClusterSplitKPlan<Config>>;

template <class Config>
__global__ void __cluster_dims__(tile::kClusterBlocks, 1, 1)
    __launch_bounds__(ClusterSplitKBlock<Config>::kThreads, 1)
        linear_cluster_split_k(const __grid_constant__ tile::TmaArgs<2> given) {
  using T = typename Config::T;
  constexpr int N = Config::N;
  using Block = ClusterSplitKBlock<Config>;
  extern __shared__ __align__(tile::kSwizzleAtomBytes) char stages[];
  char* const shared = stages;
  tile::launch_dependents();
  const Block block{shared, tile::cluster_rank(), tile::token_lines<Block>(given.call.dims[0])};
  block.begin();

  const LaunchArgs& args = given.call;
  const T* bias = static_cast<const T*>(args.inputs[2]);      // [N]
  const T* residual = static_cast<const T*>(args.inputs[3]);  // [M, N]
  T* out = static_cast<T*>(args.outputs[0]);                  // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const int first_row = blockIdx.x / tile::kClusterBlocks * Block::kRows;
  const int first_token = blockIdx.y * Block::kTokens;

  tile::WideAccum<Block::kTiles, Block::kTokens> weight_product;  // [M, N]

  if (block.is_producer()) {
    const auto copy_vectors = [](int) {};
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
  tile::multiply(block, false, [&](const auto& step) {
    const auto x_tile = step.token_tma();                 // [M, K]
    const auto weight_tile = step.row_tma(0);             // [N, K]
    tile::contract(weight_product, weight_tile, x_tile);  // [M, N]
  });

  auto weight_product_parts = tile::store_partials(block, 0, weight_product);
  const tile::OutputTile out_tile{first_row, N, first_token + block.rank * Block::kHalf, M};
  const auto bias_tile_early = tile::load_owned_rows(block, out_tile, bias);
  const auto residual_tile_early = tile::load_owned(block, out_tile, residual, args.row_strides[3]);
  tile::wait_for_partials(block);
  if (!block.finishes(M - first_token)) return;
  tile::add_partials(block, 0, weight_product_parts);

  const auto finish = [&](tile::OwnedElement e) {
    const float bias_tile = tile::early_value(bias_tile_early, e);                     // [N]
    const float residual_tile = tile::early_value(residual_tile_early, e);             // [M, N]
    const float residual_plus_bias = tile::add(bias_tile, residual_tile);              // [N, M]
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float residual_plus_bias_plus_weight_product =
        tile::add(residual_plus_bias, weight_product_total);
    tile::store(out, out_tile, e, residual_plus_bias_plus_weight_product);  // [M, N]
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
      {{args.inputs[1], N, K, K}, Block::kRows},  // weight
  };
  const tile::Grid grid = tile::tma_grid<Block>(tokens, N, tile::kClusterBlocks);
  return tile::launch_tma<T>(linear_cluster_split_k<Config>, grid, args, tensors, stream);
}

}  // namespace
}  // namespace mirage::generated
