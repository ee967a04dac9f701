// mirage-kernels generate layer_norm_linear
// Schedule  register-operand wgmma: tokens are the A operand in registers, weights are read from
//           shared memory.
// Formula   [M, N] = linear(layer_norm(x, eps) * norm_weight + norm_bias, weight)
#pragma once

#include "tile/register_operand/reduce.cuh"
#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

// Many tokens: they are the A operand of wgmma, in registers.
template <class Config>
struct RegisterOperandPlan : Config {
  using Element = typename Config::T;
  static constexpr int kDepth = Config::K, kRowTensors = 1;
  static constexpr int kProducts = 1;
  static constexpr int kInner = 0;
  static constexpr int kExtraBytes = 0;
};
template <class Config>
using RegisterOperandBlock = tile::RegisterOperandBlock<RegisterOperandPlan<Config>>;

// Shared memory beside the pipeline, and in its place after the loop.
template <class Config>
struct RegisterOperandMap {
  using Block = RegisterOperandBlock<Config>;
  using ScaledNormedXTile2MinusMeanXPlusProduct = tile::RegisterOperandReduction<Block>;
  using Staging = tile::RegisterOperandStaging<Block>;
  static constexpr int kScaledNormedXTile2MinusMeanXPlusProductAt = 0;
  static constexpr int kStagingAt =
      kScaledNormedXTile2MinusMeanXPlusProductAt + ScaledNormedXTile2MinusMeanXPlusProduct::kBytes;
  static_assert(kStagingAt + Staging::kBytes <= Block::kPipelineBytes);
};

template <class Config>
__global__ void __launch_bounds__(RegisterOperandBlock<Config>::kThreads, 1)
    layer_norm_linear_register_operand(const __grid_constant__ tile::TmaArgs<2> given) {
  using T = typename Config::T;
  constexpr int N = Config::N;
  using Block = RegisterOperandBlock<Config>;
  using Shared = RegisterOperandMap<Config>;
  extern __shared__ __align__(tile::kSwizzleAtomBytes) char stages[];
  char* const shared = stages;
  tile::launch_dependents();
  const Block block{shared, tile::token_lines<Block>(given.call.dims[0])};
  block.begin();

  const LaunchArgs& args = given.call;
  T* out = static_cast<T*>(args.outputs[0]);  // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const int tile_row = blockIdx.x / Block::kBlocks * Block::kRows;
  const int first_row = tile_row + Block::rank() * Block::kOwnRows;
  const int first_token = blockIdx.y * Block::kTokens;

  tile::SwappedAccum<Block::kRows> scaled_normed_x_tile_2_minus_mean_x_plus_product;  // [N, M]

  if (block.is_producer()) {
    const auto prefetch_weights = [&](int k) { tile::prefetch_tile(given.maps[1], tile_row, k); };
    const auto copy_weights = [&](const auto& buffer, int k) {
      tile::copy_tile_once(buffer.rows(0), given.maps[1], tile_row, k, buffer.full);
    };
    const auto copy_tokens = [&](const auto& buffer, int k) {
      tile::copy_tile(buffer.tokens(), given.maps[0], first_token, k, buffer.full);
    };
    block.copy(args.constant_weights, prefetch_weights, copy_weights, copy_tokens);
    return;
  }
  tile::multiply_register_operand(block, [&](const auto& step) {
    const auto scaled_normed_x_tile_2_minus_mean_x_plus = step.tokens();  // [K, M]
    const auto weight_tile = step.rows(0);                                // [N, K]
    tile::contract(scaled_normed_x_tile_2_minus_mean_x_plus_product, weight_tile,
                   scaled_normed_x_tile_2_minus_mean_x_plus);
  });
  tile::end_loop(block);

  auto scaled_normed_x_tile_2_minus_mean_x_plus_product_parts =
      tile::store_partials(block, shared + Shared::kScaledNormedXTile2MinusMeanXPlusProductAt, 0,
                           scaled_normed_x_tile_2_minus_mean_x_plus_product);
  tile::sync_workers(block);
  tile::add_partials(block, shared + Shared::kScaledNormedXTile2MinusMeanXPlusProductAt, 0,
                     scaled_normed_x_tile_2_minus_mean_x_plus_product_parts);

  const tile::OutputTile out_tile{first_row, N, first_token, M};
  const auto finish = [&](tile::OwnedElement e) {
    const float scaled_normed_x_tile_2_minus_mean_x_plus_product_total =
        tile::sum_over_warps(scaled_normed_x_tile_2_minus_mean_x_plus_product_parts, e);
    tile::store(out, out_tile, e, scaled_normed_x_tile_2_minus_mean_x_plus_product_total);
  };
  tile::for_each_owned_row(block, shared + Shared::kStagingAt, out_tile, out, finish);
}

template <class... Knobs>
cudaError_t launch(RegisterOperand<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = RegisterOperand<Knobs...>;
  using T = typename Config::T;
  constexpr int K = Config::K, N = Config::N;
  using Block = RegisterOperandBlock<Config>;
  const int64_t tokens = args.dims[0];
  const tile::TiledTensor tensors[] = {
      {{args.inputs[0], tokens, K, args.row_strides[0]}, tile::token_lines<Block>(tokens)},
      {{args.inputs[3], N, K, K}, Block::kRows},  // weight
  };
  const tile::Grid grid = tile::tma_grid<Block>(tokens, N, Block::kBlocks, Block::kBlocks);
  return tile::launch_tma<T>(layer_norm_linear_register_operand<Config>, grid, args, tensors,
                             stream);
}

}  // namespace
}  // namespace mirage::generated
