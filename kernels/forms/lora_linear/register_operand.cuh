// mirage-kernels generate lora_linear
//
// Schedule  register-operand wgmma: tokens are held in registers, on the M side of products with
//           weights as they lie in shared memory.
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)
#pragma once

#include "tile/apart.cuh"
#include "tile/apart_held.cuh"
#include "tile/held_meeting.cuh"
#include "tile/tile.cuh"

#include "paired_producers.cuh"
#include "producers.cuh"

namespace mirage::generated {
namespace {

template <class Config>
constexpr int kOwn = Config::kRows / Config::kBlocks;  // rows that a block finishes

// Where tokens are many, they are held in registers, on the M side of products.
template <class Config>
struct HeldPlan : Config {
  using T = typename Config::T;
  static constexpr int R = Config::R;
  using Element = typename Config::T;
  static constexpr int kDepth = Config::K, kRowTensors = 1;
  static constexpr int kProducts = 1;
  static constexpr int kInner = 0;
  static constexpr int kBesideBytes = tile::Kept<T, kOwn<Config>, R>::kBytes +
                                      tile::Kept<T, Config::kTokens, R>::kBytes +
                                      tile::AccumMeeting<kOwn<Config>, Config::kTokens, 1>::kBytes;
};
template <class Config>
using HeldBlock = tile::HeldBlock<HeldPlan<Config>>;
template <class Config>
constexpr int kHeldThreads = HeldBlock<Config>::kThreads + tile::kReceivers * tile::kWarpLanes;

// Shared memory beside the ring, and in its place after the loop.
template <class Config>
struct HeldMap {
  using T = typename Config::T;
  static constexpr int R = Config::R;
  using Block = HeldBlock<Config>;
  using WeightProduct = tile::HeldMeeting<Block>;
  using LoraBTile = tile::Kept<T, kOwn<Config>, R>;
  using LoraAProductTotalKept = tile::Kept<T, Config::kTokens, R>;
  using LoraAProductProduct = tile::AccumMeeting<kOwn<Config>, Config::kTokens, 1>;
  using Staging = tile::HeldStaging<Block>;
  static constexpr int kLoraBTileAt = Block::kRingBytes;
  static constexpr int kLoraAProductTotalKeptAt = kLoraBTileAt + LoraBTile::kBytes;
  static constexpr int kLoraAProductProductAt =
      kLoraAProductTotalKeptAt + LoraAProductTotalKept::kBytes;
  static constexpr int kWeightProductAt = 0;
  static constexpr int kStagingAt = kWeightProductAt + WeightProduct::kBytes;
  static_assert(kStagingAt + Staging::kBytes <= Block::kRingBytes);
};

template <class Config>
__global__ void __launch_bounds__(kHeldThreads<Config>, 1)
    lora_linear_held(const __grid_constant__ HeldArgs given) {
  using T = typename Config::T;
  constexpr int N = Config::N;
  using Block = HeldBlock<Config>;
  using Shared = HeldMap<Config>;
  extern __shared__ __align__(tile::kBoxAtom) char boxes[];
  char* const shared = boxes;
  tile::let_next_start();
  const Apart<Config> apart(given.call);
  if (apart.makes()) return lora_linear_make<Config>(given, shared);

  const LaunchArgs& args = given.call;
  const T* lora_b = static_cast<const T*>(args.inputs[3]);  // [N, R]
  T* out = static_cast<T*>(args.outputs[0]);                // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float scale = args.scalars[0];
  const int box_row = apart.user() / Block::kBlocks * Block::kRows;
  const int first_row = box_row + Block::rank() * Block::kOwnRows;
  const int first_token = blockIdx.y * Block::kTokens;

  if (tile::warp_index() > Block::kWarps) {
    Block::tell_cluster();
    const int receiver = tile::warp_index() - Block::kWarps - 1;
    if (!args.constant_weights) tile::wait_for_previous();
    const typename Shared::LoraBTile lora_b_tile{shared + Shared::kLoraBTileAt};
    tile::fetch<tile::kReceivers * tile::kWarpLanes>(lora_b_tile, lora_b, first_row, N);
    tile::commit_copies();
    tile::wait_for_previous();
    const typename Shared::LoraAProductTotalKept lora_a_product_total_kept{
        shared + Shared::kLoraAProductTotalKeptAt};
    apart.template receive<tile::kReceivers>(lora_a_product_total_kept, receiver);
    tile::wait_copies<0>();
    tile::sync_receivers<tile::kReceivers>();
    tile::contract_alone<tile::kReceivers>(shared + Shared::kLoraAProductProductAt, lora_b_tile,
                                           lora_a_product_total_kept, receiver);
    tile::sync_received<Block::kWarps, tile::kReceivers>();
    return;
  }
  const Block block{shared, tile::token_lines<Block>(given.call.dims[0])};
  block.begin();

  tile::HeldAccum<Block::kRows> weight_product;  // [M, N]

  if (block.copies()) {
    const auto find_weights = [&](int k) { tile::find_box(given.maps[1], box_row, k); };
    const auto copy_weights = [&](const auto& slot, int k) {
      tile::copy_box(slot.rows(0), given.maps[1], box_row, k, slot.full);
    };
    const auto copy_tokens = [&](const auto& slot, int k) {
      tile::copy_box(slot.tokens(), given.maps[0], first_token, k, slot.full);
    };
    block.copy(args.constant_weights, find_weights, copy_weights, copy_tokens);
    return;
  }
  tile::multiply_held(block, [&](const auto& step) {
    const auto x_tile = step.tokens();                    // [M, K]
    const auto weight_tile = step.rows(0);                // [N, K]
    tile::contract(weight_product, weight_tile, x_tile);  // [M, N]
  });
  tile::end_loop(block);

  auto weight_product_parts =
      tile::meet(block, shared + Shared::kWeightProductAt, 0, weight_product);
  tile::sync_received<Block::kWarps, tile::kReceivers>();
  tile::collect(block, shared + Shared::kWeightProductAt, 0, weight_product_parts);

  const auto lora_a_product_product_parts =
      Shared::LoraAProductProduct::in(shared + Shared::kLoraAProductProductAt);
  const tile::OutputTile out_tile{first_row, N, first_token, M};
  const auto finish = [&](tile::DealtElement e) {
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float lora_a_product_product = tile::sum_over_warps(lora_a_product_product_parts, e);
    const float scaled_lora_a_product_product = tile::mul(scale, lora_a_product_product);  // [N, M]
    const float scaled_lora_a_product_product_plus =
        tile::add(weight_product_total, scaled_lora_a_product_product);
    tile::store(out, out_tile, e, scaled_lora_a_product_product_plus);  // [M, N]
  };
  tile::for_each_held(block, shared + Shared::kStagingAt, out_tile, out, finish);
}

template <class Config>
cudaError_t launch_held(const LaunchArgs& args, cudaStream_t stream) {
  using T = typename Config::T;
  constexpr int K = Config::K, N = Config::N, R = Config::R;
  using Block = HeldBlock<Config>;
  HeldArgs given{args};
  const tile::Tensor x{args.inputs[0], args.dims[0], K, args.row_strides[0]};
  cudaError_t status = tile::encode<T>(&given.maps[0], x, tile::token_lines<Block>(args.dims[0]));
  if (status != cudaSuccess) return status;
  const tile::Tensor weight{args.inputs[1], N, K, K};
  status = tile::encode<T>(&given.maps[1], weight, Block::kRows);
  if (status != cudaSuccess) return status;
  using Makers = MakersBlock<Config>;
  status = tile::encode<T>(&given.made[0], x, tile::token_lines<Makers>(args.dims[0]));
  if (status != cudaSuccess) return status;
  const tile::Tensor lora_a{args.inputs[2], R, K, K};
  status = tile::encode<T>(&given.made[1], lora_a, Makers::kRows);
  if (status != cudaSuccess) return status;
  const int64_t row_tiles =
      Apart<Config>::kMakers + tile::ceil_div(N, Block::kRows) * Block::kBlocks;
  const int64_t token_tiles = tile::ceil_div(args.dims[0], Block::kTokens);
  constexpr int kSharedBytes = tile::larger(Block::kBytes, kPairBytes<Config>);
  const tile::Grid grid{row_tiles, token_tiles, kHeldThreads<Config>, kSharedBytes, Block::kBlocks};
  return tile::launch(lora_linear_held<Config>, grid, given, stream);
}

}  // namespace
}  // namespace mirage::generated
