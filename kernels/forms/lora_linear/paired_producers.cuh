// mirage-kernels generate lora_linear
//
// Schedule  producer blocks that hold tokens in registers: in pairs that split the depth they make
//           lora_a_product_total for consumers that do so too.
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)
#pragma once

#include "tile/apart_held.cuh"

#include "producers.cuh"

namespace mirage::generated {
namespace {

// What a launch of makers and users is given.
struct HeldArgs {
  LaunchArgs call;
  CUtensorMap maps[2];  // x, weight
  CUtensorMap made[2];  // of what makers read: tokens, rows
};

// Makers share a tile in pairs, too, and split the depth.
template <class Users>
struct MakersPlan {
  using Element = typename Users::T;
  static constexpr int kRows = 2 * Users::kMakerRows, kTokens = Users::kMakerTokens;
  static constexpr int kStages = Users::kMakerStages, kGroups = Users::kMakerGroups, kBlocks = 2;
  static constexpr int kDepth = Users::K, kRowTensors = 1;
  static constexpr int kProducts = 1, kInner = 0, kBesideBytes = 0;
};
template <class Users>
using MakersBlock = tile::HeldBlock<MakersPlan<Users>>;

template <class Config>
constexpr int kPairBytes = MakersBlock<Config>::kBytes + Apart<Config>::kStampBytes;

template <class Config>
__device__ void lora_linear_make(const HeldArgs& given, char* shared) {
  constexpr int R = Config::R;
  using Block = MakersBlock<Config>;
  const LaunchArgs& args = given.call;
  const int M = static_cast<int>(args.dims[0]);
  const Apart<Config> apart(args);
  const int first_row = apart.first_row(), first_token = apart.first_token();
  const int box_row = first_row / Block::kRows * Block::kRows;
  if (tile::warp_index() > Block::kWarps) return;
  const Block block{shared, tile::token_lines<Block>(M)};
  if (threadIdx.x == 0) apart.stamp(shared + Block::kBytes) = tile::new_stamp();
  block.begin();

  tile::HeldAccum<Block::kRows> lora_a_product;  // [M, R]

  if (block.copies()) {
    const auto find_weights = [&](int k) { tile::find_box(given.made[1], box_row, k); };
    const auto copy_weights = [&](const auto& slot, int k) {
      tile::copy_box(slot.rows(0), given.made[1], box_row, k, slot.full);
    };
    const auto copy_tokens = [&](const auto& slot, int k) {
      tile::copy_box(slot.tokens(), given.made[0], first_token, k, slot.full);
    };
    block.copy(args.constant_weights, find_weights, copy_weights, copy_tokens);
    return;
  }
  tile::multiply_held(block, [&](const auto& step) {
    const auto x_tile = step.tokens();                    // [M, K]
    const auto lora_a_tile = step.rows(0);                // [R, K]
    tile::contract(lora_a_product, lora_a_tile, x_tile);  // [M, R]
  });
  tile::end_loop(block);

  auto lora_a_product_parts = tile::meet(block, shared, 0, lora_a_product);
  tile::sync_workers(block);
  tile::collect(block, shared, 0, lora_a_product_parts);

  const tile::OutputTile out_tile{first_row, R, first_token, M};
  char* const lines = shared + tile::HeldMeeting<Block>::kBytes;
  tile::make_held(block, apart, lines, out_tile, [&](tile::DealtElement e) {
    const float lora_a_product_total = tile::sum_over_warps(lora_a_product_parts, e);  // [M, R]
    return lora_a_product_total;
  });
}

}  // namespace
}  // namespace mirage::generated
