// mirage-kernels generate lora_linear
// Schedule  producer blocks with register operands: pairs that split the depth compute
//           lora_a_product_total for pairs of consumer blocks.
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)
#pragma once

#include "tile/producer_blocks/register_operand.cuh"
#include "variants.h"

#include "producers.cuh"

namespace mirage::generated {
namespace {

// The arguments of a launch of producer and consumer blocks.
struct RegisterOperandArgs {
  LaunchArgs call;
  CUtensorMap maps[2];           // x, weight
  CUtensorMap producer_maps[2];  // the producers' tokens and rows
};

// Producers share a tile in pairs, too, and split the depth.
template <class Consumers>
struct ProducersPlan {
  using Element = typename Consumers::T;
  static constexpr int kRows = 2 * Consumers::kProducerRows, kTokens = Consumers::kProducerTokens;
  static constexpr int kStages = Consumers::kProducerStages, kGroups = Consumers::kProducerGroups;
  static constexpr int kBlocks = 2;
  static constexpr int kDepth = Consumers::K, kRowTensors = 1;
  static constexpr int kProducts = 1, kInner = 0, kExtraBytes = 0;
};
template <class Consumers>
using ProducersBlock = tile::RegisterOperandBlock<ProducersPlan<Consumers>>;

template <class Config>
constexpr int kPairBytes = ProducersBlock<Config>::kBytes + ProducerBlocks<Config>::kTagBytes;

template <class Config>
__device__ void lora_linear_produce(const RegisterOperandArgs& given, char* shared) {
  constexpr int R = Config::R;
  using Block = ProducersBlock<Config>;
  const LaunchArgs& args = given.call;
  const int M = static_cast<int>(args.dims[0]);
  const ProducerBlocks<Config> producers(args);
  const int first_row = producers.first_row(), first_token = producers.first_token();
  const int tile_row = first_row / Block::kRows * Block::kRows;
  if (tile::warp_index() > Block::kWarps) return;
  const Block block{shared, tile::token_lines<Block>(M)};
  if (threadIdx.x == 0) producers.tag(shared + Block::kBytes) = tile::new_tag();
  block.begin();

  tile::SwappedAccum<Block::kRows> lora_a_product;  // [M, R]

  if (block.is_producer()) {
    const auto prefetch_weights = [&](int k) {
      tile::prefetch_tile(given.producer_maps[1], tile_row, k);
    };
    const auto copy_weights = [&](const auto& buffer, int k) {
      tile::copy_tile_once(buffer.rows(0), given.producer_maps[1], tile_row, k, buffer.full);
    };
    const auto copy_tokens = [&](const auto& buffer, int k) {
      tile::copy_tile(buffer.tokens(), given.producer_maps[0], first_token, k, buffer.full);
    };
    block.copy(args.constant_weights, prefetch_weights, copy_weights, copy_tokens);
    return;
  }
  tile::multiply_register_operand(block, [&](const auto& step) {
    const auto x_tile = step.tokens();                    // [M, K]
    const auto lora_a_tile = step.rows(0);                // [R, K]
    tile::contract(lora_a_product, lora_a_tile, x_tile);  // [M, R]
  });
  tile::end_loop(block);

  auto lora_a_product_parts = tile::store_partials(block, shared, 0, lora_a_product);
  tile::sync_workers(block);
  tile::add_partials(block, shared, 0, lora_a_product_parts);

  const tile::OutputTile out_tile{first_row, R, first_token, M};
  char* const lines = shared + tile::RegisterOperandReduction<Block>::kBytes;
  tile::produce_register_operand(block, producers, lines, out_tile, [&](tile::OwnedElement e) {
    const float lora_a_product_total = tile::sum_over_warps(lora_a_product_parts, e);  // [M, R]
    return lora_a_product_total;
  });
}

}  // namespace
}  // namespace mirage::generated
