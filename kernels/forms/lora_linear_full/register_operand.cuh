// mirage-kernels generate lora_linear_full
// Schedule  register-operand wgmma: tokens are the A operand in registers, weights are read from
//           shared memory.
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias
#pragma once

#include "tile/producer_blocks/intermediate.cuh"
#include "tile/producer_blocks/register_operand.cuh"
#include "tile/register_operand/reduce.cuh"
#include "tile/tile.cuh"
#include "variants.h"

#include "paired_producers.cuh"
#include "producers.cuh"

namespace mirage::generated {
namespace {

template <class Config>
constexpr int kOwn = Config::kRows / Config::kBlocks;  // rows that a block finishes

// Many tokens: they are the A operand of wgmma, in registers.
template <class Config>
struct RegisterOperandPlan : Config {
  using T = typename Config::T;
  static constexpr int R = Config::R;
  using Element = typename Config::T;
  static constexpr int kDepth = Config::K, kRowTensors = 1;
  static constexpr int kProducts = 1;
  static constexpr int kInner = 0;
  static constexpr int kExtraBytes = tile::Resident<T, kOwn<Config>, R>::kBytes +
                                     tile::Resident<T, Config::kTokens, R>::kBytes +
                                     tile::AccumPartials<kOwn<Config>, Config::kTokens, 1>::kBytes;
};
template <class Config>
using RegisterOperandBlock = tile::RegisterOperandBlock<RegisterOperandPlan<Config>>;
template <class Config>
constexpr int kRegisterOperandThreads =
    RegisterOperandBlock<Config>::kThreads + tile::kReceivingWarps * tile::kWarpLanes;

// Shared memory beside the pipeline, and in its place after the loop.
template <class Config>
struct RegisterOperandMap {
  using T = typename Config::T;
  static constexpr int R = Config::R;
  using Block = RegisterOperandBlock<Config>;
  using WeightProduct = tile::RegisterOperandReduction<Block>;
  using LoraBTile = tile::Resident<T, kOwn<Config>, R>;
  using LoraAProductTotalKept = tile::Resident<T, Config::kTokens, R>;
  using LoraAProductProduct = tile::AccumPartials<kOwn<Config>, Config::kTokens, 1>;
  using Staging = tile::RegisterOperandStaging<Block>;
  static constexpr int kLoraBTileAt = Block::kPipelineBytes;
  static constexpr int kLoraAProductTotalKeptAt = kLoraBTileAt + LoraBTile::kBytes;
  static constexpr int kLoraAProductProductAt =
      kLoraAProductTotalKeptAt + LoraAProductTotalKept::kBytes;
  static constexpr int kWeightProductAt = 0;
  static constexpr int kStagingAt = kWeightProductAt + WeightProduct::kBytes;
  static_assert(kStagingAt + Staging::kBytes <= Block::kPipelineBytes);
};

template <class Config>
__global__ void __launch_bounds__(kRegisterOperandThreads<Config>, 1)
    lora_linear_full_register_operand(const __grid_constant__ RegisterOperandArgs given) {
  using T = typename Config::T;
  constexpr int N = Config::N;
  using Block = RegisterOperandBlock<Config>;
  using Shared = RegisterOperandMap<Config>;
  extern __shared__ __align__(tile::kSwizzleAtomBytes) char stages[];
  char* const shared = stages;
  tile::launch_dependents();
  const ProducerBlocks<Config> producers(given.call);
  if (producers.is_producer()) return lora_linear_full_produce<Config>(given, shared);

  const LaunchArgs& args = given.call;
  const T* lora_b = static_cast<const T*>(args.inputs[3]);  // [N, R]
  const T* bias = static_cast<const T*>(args.inputs[4]);    // [N]
  T* out = static_cast<T*>(args.outputs[0]);                // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float scale = args.scalars[0];
  const int tile_row = producers.consumer() / Block::kBlocks * Block::kRows;
  const int first_row = tile_row + Block::rank() * Block::kOwnRows;
  const int first_token = blockIdx.y * Block::kTokens;

  if (tile::warp_index() > Block::kWarps) {
    Block::sync_cluster();
    const int receiver = tile::warp_index() - Block::kWarps - 1;
    if (!args.constant_weights) tile::grid_dependency_wait();
    const typename Shared::LoraBTile lora_b_tile{shared + Shared::kLoraBTileAt};
    tile::fetch<tile::kReceivingWarps * tile::kWarpLanes>(lora_b_tile, lora_b, first_row, N);
    tile::commit_copies();
    tile::grid_dependency_wait();
    const typename Shared::LoraAProductTotalKept lora_a_product_total_kept{
        shared + Shared::kLoraAProductTotalKeptAt};
    producers.template receive<tile::kReceivingWarps>(lora_a_product_total_kept, receiver);
    tile::wait_copies<0>();
    tile::sync_consumers<tile::kReceivingWarps>();
    tile::contract_in_one_warp<tile::kReceivingWarps>(
        shared + Shared::kLoraAProductProductAt, lora_b_tile, lora_a_product_total_kept, receiver);
    tile::sync_intermediate<Block::kWarps, tile::kReceivingWarps>();
    return;
  }
  const Block block{shared, tile::token_lines<Block>(given.call.dims[0])};
  block.begin();

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
  tile::sync_intermediate<Block::kWarps, tile::kReceivingWarps>();
  tile::add_partials(block, shared + Shared::kWeightProductAt, 0, weight_product_parts);

  const auto lora_a_product_product_parts =
      Shared::LoraAProductProduct::in(shared + Shared::kLoraAProductProductAt);
  const tile::OutputTile out_tile{first_row, N, first_token, M};
  const auto finish = [&](tile::OwnedElement e) {
    const float bias_tile = tile::load_row(bias, out_tile, e);                         // [N]
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float lora_a_product_product = tile::sum_over_warps(lora_a_product_product_parts, e);
    const float weight_product_plus_bias = tile::add(bias_tile, weight_product_total);     // [N, M]
    const float scaled_lora_a_product_product = tile::mul(scale, lora_a_product_product);  // [N, M]
    const float scaled_lora_a_product_product_plus =
        tile::add(weight_product_plus_bias, scaled_lora_a_product_product);
    tile::store(out, out_tile, e, scaled_lora_a_product_product_plus);  // [M, N]
  };
  tile::for_each_owned_row(block, shared + Shared::kStagingAt, out_tile, out, finish);
}

template <class... Knobs>
cudaError_t launch(RegisterOperand<Knobs...>, const LaunchArgs& args, cudaStream_t stream) {
  using Config = RegisterOperand<Knobs...>;
  using T = typename Config::T;
  constexpr int K = Config::K, N = Config::N, R = Config::R;
  using Block = RegisterOperandBlock<Config>;
  RegisterOperandArgs given{args};
  const tile::Tensor x{args.inputs[0], args.dims[0], K, args.row_strides[0]};
  cudaError_t status = tile::encode<T>(&given.maps[0], x, tile::token_lines<Block>(args.dims[0]));
  if (status != cudaSuccess) return status;
  const tile::Tensor weight{args.inputs[1], N, K, K};
  status = tile::encode<T>(&given.maps[1], weight, Block::kRows);
  if (status != cudaSuccess) return status;
  using Producers = ProducersBlock<Config>;
  status = tile::encode<T>(&given.producer_maps[0], x, tile::token_lines<Producers>(args.dims[0]));
  if (status != cudaSuccess) return status;
  const tile::Tensor lora_a{args.inputs[2], R, K, K};
  status = tile::encode<T>(&given.producer_maps[1], lora_a, Producers::kRows);
  if (status != cudaSuccess) return status;
  const int64_t row_tiles =
      ProducerBlocks<Config>::kProducers + tile::ceil_div(N, Block::kRows) * Block::kBlocks;
  const int64_t token_tiles = tile::ceil_div(args.dims[0], Block::kTokens);
  constexpr int kSharedBytes = tile::larger(Block::kBytes, kPairBytes<Config>);
  const tile::Grid grid{row_tiles, token_tiles, kRegisterOperandThreads<Config>, kSharedBytes,
                        Block::kBlocks};
  return tile::launch(lora_linear_full_register_operand<Config>, grid, given, stream);
}

}  // namespace
}  // namespace mirage::generated
