// mirage-kernels generate rms_norm_geglu_mlp
// Schedule  register-operand wgmma: tokens are the A operand in registers, weights are read from
//           shared memory.
// Formula   [M, N] = gelu_tanh(linear(rms_norm(x), gate_weight)) * linear(rms_norm(x), up_weight)
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
  static constexpr int kDepth = Config::K, kRowTensors = 2;
  static constexpr int kProducts = 2;
  static constexpr int kVectors = 1, kTokenSums = 1;
  static constexpr int kInner = 0;
  static constexpr int kExtraBytes = 0;
};
template <class Config>
using RegisterOperandBlock = tile::RegisterOperandBlock<RegisterOperandPlan<Config>>;

// Shared memory beside the pipeline, and in its place after the loop.
template <class Config>
struct RegisterOperandMap {
  using Block = RegisterOperandBlock<Config>;
  using ScaledXProduct = tile::RegisterOperandReduction<Block>;
  using ScaledXProduct2 = tile::RegisterOperandReduction<Block>;
  using Staging = tile::RegisterOperandStaging<Block>;
  static constexpr int kScaledXProductAt = 0;
  static constexpr int kScaledXProduct2At = kScaledXProductAt + ScaledXProduct::kBytes;
  static constexpr int kStagingAt = kScaledXProduct2At + ScaledXProduct2::kBytes;
  static_assert(kStagingAt + Staging::kBytes <= Block::kPipelineBytes);
};

template <class Config>
__global__ void __launch_bounds__(RegisterOperandBlock<Config>::kThreads, 1)
    rms_norm_geglu_mlp_register_operand(const __grid_constant__ tile::TmaArgs<3> given) {
  using T = typename Config::T;
  constexpr int K = Config::K, N = Config::N;
  using Block = RegisterOperandBlock<Config>;
  using Shared = RegisterOperandMap<Config>;
  extern __shared__ __align__(tile::kSwizzleAtomBytes) char stages[];
  char* const shared = stages;
  tile::launch_dependents();
  const Block block{shared, tile::token_lines<Block>(given.call.dims[0])};
  block.begin();

  const LaunchArgs& args = given.call;
  const T* norm_weight = static_cast<const T*>(args.inputs[1]);  // [K]
  T* out = static_cast<T*>(args.outputs[0]);                     // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float eps = args.scalars[0];
  const int tile_row = blockIdx.x / Block::kBlocks * Block::kRows;
  const int first_row = tile_row + Block::rank() * Block::kOwnRows;
  const int first_token = blockIdx.y * Block::kTokens;

  tile::TokenPartial<tile::kRowTile> x_squared;         // [M]
  tile::SwappedAccum<Block::kRows> scaled_x_product;    // [N, M]
  tile::SwappedAccum<Block::kRows> scaled_x_product_2;  // [N, M]

  if (block.is_producer()) {
    const auto copy_vectors = [&] { block.copy_vector(0, norm_weight); };
    const auto prefetch_weights = [&](int k) {
      tile::prefetch_tile(given.maps[1], tile_row, k);
      tile::prefetch_tile(given.maps[2], tile_row, k);
    };
    const auto copy_weights = [&](const auto& buffer, int k) {
      tile::copy_tile_once(buffer.rows(0), given.maps[1], tile_row, k, buffer.full);
      tile::copy_tile_once(buffer.rows(1), given.maps[2], tile_row, k, buffer.full);
    };
    const auto copy_tokens = [&](const auto& buffer, int k) {
      tile::copy_tile(buffer.tokens(), given.maps[0], first_token, k, buffer.full);
    };
    block.copy(args.constant_weights, prefetch_weights, copy_vectors, copy_weights, copy_tokens);
    return;
  }
  tile::multiply_register_operand(block, [&](const auto& step) {
    const auto x_tile = step.tokens();                               // [M, K]
    const auto norm_weight_tile = step.vector(0);                    // [K]
    const auto gate_weight_tile = step.rows(0);                      // [N, K]
    const auto up_weight_tile = step.rows(1);                        // [N, K]
    const auto x_squared_terms = tile::mul<float>(x_tile, x_tile);   // [M, K]
    tile::sum_depth(x_squared, x_squared_terms);                     // [M]
    const auto scaled_x = tile::mul<T>(x_tile, norm_weight_tile);    // [M, K]
    tile::contract(scaled_x_product, up_weight_tile, scaled_x);      // [N, M]
    tile::contract(scaled_x_product_2, gate_weight_tile, scaled_x);  // [N, M]
  });
  tile::end_loop(block);

  const auto x_squared_parts = tile::store_partials(block, 0, x_squared);
  auto scaled_x_product_parts =
      tile::store_partials(block, shared + Shared::kScaledXProductAt, 0, scaled_x_product);
  auto scaled_x_product_2_parts =
      tile::store_partials(block, shared + Shared::kScaledXProduct2At, 1, scaled_x_product_2);
  tile::sync_workers(block);
  tile::add_partials(block, shared + Shared::kScaledXProductAt, 0, scaled_x_product_parts);
  tile::add_partials(block, shared + Shared::kScaledXProduct2At, 1, scaled_x_product_2_parts);

  const tile::OutputTile out_tile{first_row, N, first_token, M};
  const auto finish = [&](tile::OwnedElement e) {
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
      {{args.inputs[2], N, K, K}, Block::kRows},  // gate_weight
      {{args.inputs[3], N, K, K}, Block::kRows},  // up_weight
  };
  const tile::Grid grid = tile::tma_grid<Block>(tokens, N, Block::kBlocks, Block::kBlocks);
  return tile::launch_tma<T>(rms_norm_geglu_mlp_register_operand<Config>, grid, args, tensors,
                             stream);
}

}  // namespace
}  // namespace mirage::generated
