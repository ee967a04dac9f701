// mirage-kernels generate layer_norm_linear
//
// Schedule  register-operand wgmma: tokens are held in registers, on the M side of products with
//           weights as they lie in shared memory.
// Formula   [M, N] = linear(layer_norm(x, eps) * norm_weight + norm_bias, weight)
#pragma once

#include "tile/held_meeting.cuh"
#include "tile/tile.cuh"

namespace mirage::generated {
namespace {

// Where tokens are many, they are held in registers, on the M side of products.
template <class Config>
struct HeldPlan : Config {
  using Element = typename Config::T;
  static constexpr int kDepth = Config::K, kRowTensors = 1;
  static constexpr int kProducts = 1;
  static constexpr int kInner = 0;
  static constexpr int kBesideBytes = 0;
};
template <class Config>
using HeldBlock = tile::HeldBlock<HeldPlan<Config>>;

// Shared memory beside the ring, and in its place after the loop.
template <class Config>
struct HeldMap {
  using Block = HeldBlock<Config>;
  using ScaledNormedXTile2MinusMeanXPlusProduct = tile::HeldMeeting<Block>;
  using Staging = tile::HeldStaging<Block>;
  static constexpr int kScaledNormedXTile2MinusMeanXPlusProductAt = 0;
  static constexpr int kStagingAt =
      kScaledNormedXTile2MinusMeanXPlusProductAt + ScaledNormedXTile2MinusMeanXPlusProduct::kBytes;
  static_assert(kStagingAt + Staging::kBytes <= Block::kRingBytes);
};

struct HeldArgs {
  LaunchArgs call;
  CUtensorMap maps[2];  // x_made, weight
};

template <class Config>
__global__ void __launch_bounds__(HeldBlock<Config>::kThreads, 1)
    layer_norm_linear_held(const __grid_constant__ HeldArgs given) {
  using T = typename Config::T;
  constexpr int N = Config::N;
  using Block = HeldBlock<Config>;
  using Shared = HeldMap<Config>;
  extern __shared__ __align__(tile::kBoxAtom) char boxes[];
  char* const shared = boxes;
  tile::let_next_start();
  const Block block{shared, tile::token_lines<Block>(given.call.dims[0])};
  block.begin();

  const LaunchArgs& args = given.call;
  T* out = static_cast<T*>(args.outputs[0]);  // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const int box_row = blockIdx.x / Block::kBlocks * Block::kRows;
  const int first_row = box_row + Block::rank() * Block::kOwnRows;
  const int first_token = blockIdx.y * Block::kTokens;

  tile::HeldAccum<Block::kRows> scaled_normed_x_tile_2_minus_mean_x_plus_product;  // [N, M]

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
    const auto scaled_normed_x_tile_2_minus_mean_x_plus = step.tokens();  // [K, M]
    const auto weight_tile = step.rows(0);                                // [N, K]
    tile::contract(scaled_normed_x_tile_2_minus_mean_x_plus_product, weight_tile,
                   scaled_normed_x_tile_2_minus_mean_x_plus);
  });
  tile::end_loop(block);

  auto scaled_normed_x_tile_2_minus_mean_x_plus_product_parts =
      tile::meet(block, shared + Shared::kScaledNormedXTile2MinusMeanXPlusProductAt, 0,
                 scaled_normed_x_tile_2_minus_mean_x_plus_product);
  tile::sync_workers(block);
  tile::collect(block, shared + Shared::kScaledNormedXTile2MinusMeanXPlusProductAt, 0,
                scaled_normed_x_tile_2_minus_mean_x_plus_product_parts);

  const tile::OutputTile out_tile{first_row, N, first_token, M};
  const auto finish = [&](tile::DealtElement e) {
    const float scaled_normed_x_tile_2_minus_mean_x_plus_product_total =
        tile::sum_over_warps(scaled_normed_x_tile_2_minus_mean_x_plus_product_parts, e);
    tile::store(out, out_tile, e, scaled_normed_x_tile_2_minus_mean_x_plus_product_total);
  };
  tile::for_each_held(block, shared + Shared::kStagingAt, out_tile, out, finish);
}

template <class Config>
cudaError_t launch_held(const LaunchArgs& args, cudaStream_t stream) {
  using T = typename Config::T;
  constexpr int K = Config::K, N = Config::N;
  using Block = HeldBlock<Config>;
  HeldArgs given{args};
  const tile::Tensor x_made{args.inputs[0], args.dims[0], K, args.row_strides[0]};
  cudaError_t status =
      tile::encode<T>(&given.maps[0], x_made, tile::token_lines<Block>(args.dims[0]));
  if (status != cudaSuccess) return status;
  const tile::Tensor weight{args.inputs[3], N, K, K};
  status = tile::encode<T>(&given.maps[1], weight, Block::kRows);
  if (status != cudaSuccess) return status;
  const int64_t row_tiles = tile::ceil_div(N, Block::kRows) * Block::kBlocks;
  const int64_t token_tiles = tile::ceil_div(args.dims[0], Block::kTokens);
  const tile::Grid grid{row_tiles, token_tiles, Block::kThreads, Block::kBytes, Block::kBlocks};
  return tile::launch(layer_norm_linear_held<Config>, grid, given, stream);
}

}  // namespace
}  // namespace mirage::generated
