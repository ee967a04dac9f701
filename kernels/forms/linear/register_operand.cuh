// mirage-kernels generate linear
// Schedule  register-operand wgmma: tokens are the A operand in registers, weights are read from
//           shared memory.
// Formula   [M, N] = residual + linear(x, weight) + bias
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
  using WeightProduct = tile::RegisterOperandReduction<Block>;
  using Staging = tile::RegisterOperandStaging<Block>;
  static constexpr int kWeightProductAt = 0;
  static constexpr int kStagingAt = kWeightProductAt + WeightProduct::kBytes;
  static_assert(kStagingAt + Staging::kBytes <= Block::kPipelineBytes);
};

template <class Config>
__global__ void __launch_bounds__(RegisterOperandBlock<Config>::kThreads, 1)
    linear_register_operand(const __grid_constant__ tile::TmaArgs<2> given) {
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
  const T* bias = static_cast<const T*>(args.inputs[2]);      // [N]
  const T* residual = static_cast<const T*>(args.inputs[3]);  // [M, N]
  T* out = static_cast<T*>(args.outputs[0]);                  // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const int tile_row = blockIdx.x / Block::kBlocks * Block::kRows;
  const int first_row = tile_row + Block::rank() * Block::kOwnRows;
  const int first_token = blockIdx.y * Block::kTokens;

  tile::SwappedAccum<Block::kRows> weight_product;  // [M, N]

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
    const auto x_tile = step.tokens();                    // [M, K]
    const auto weight_tile = step.rows(0);                // [N, K]
    tile::contract(weight_product, weight_tile, x_tile);  // [M, N]
  });
  tile::end_loop(block);

  auto weight_product_parts =
      tile::store_partials(block, shared + Shared::kWeightProductAt, 0, weight_product);
  tile::sync_workers(block);
  tile::add_partials(block, shared + Shared::kWeightProductAt, 0, weight_product_parts);

  const tile::OutputTile out_tile{first_row, N, first_token, M};
  const auto finish = [&](tile::OwnedElement e) {
    const float bias_tile = tile::load_row(bias, out_tile, e);  // [N]
    const float residual_tile = tile::load_element(residual, args.row_strides[3], out_tile, e);
    const float residual_plus_bias = tile::add(bias_tile, residual_tile);              // [N, M]
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float residual_plus_bias_plus_weight_product =
        tile::add(residual_plus_bias, weight_product_total);
    tile::store(out, out_tile, e, residual_plus_bias_plus_weight_product);  // [M, N]
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
      {{args.inputs[1], N, K, K}, Block::kRows},  // weight
  };
  const tile::Grid grid = tile::tma_grid<Block>(tokens, N, Block::kBlocks, Block::kBlocks);
  return tile::launch_tma<T>(linear_register_operand<Config>, grid, args, tensors, stream);
}

}  // namespace
}  // namespace mirage::generated
