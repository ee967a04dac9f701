// mirage-kernels generate lora_linear --arch sm_90a --dtype bf16 --shape K=4096,N=4096,R=16
//
// Slices  each warp of a block streams a slice of the depth; their sums meet after the loop. What
//         K4096_N4096_R16_bf16.cu launches: up to 8 tokens: 1 block for the inner product, 217 KiB
//         shared, and 128 blocks of 8 warps, 203 KiB shared; up to 16 tokens: 2 blocks for the
//         inner product, 217 KiB shared, and 128 blocks of 8 warps, 149 KiB shared.
#pragma once

#include "tile/apart.cuh"
#include "tile/tile.cuh"

#include "K4096_N4096_R16_bf16.makers.cuh"
#include "K4096_N4096_R16_bf16.shape.cuh"

namespace mirage::generated {
namespace {

// What a warp copies per step of the loop.
template <class Knobs>
struct Step {
  static constexpr int kDepth = Knobs::kChunks * tile::kChunkDepth;
  tile::TokenFrag<T, Knobs::kTokens, kDepth> x_tile;   // [M, K]
  tile::RowFrag<T, Knobs::kRows, kDepth> weight_tile;  // [N, K]
};

// Shared memory in bytes: the ring of steps, and after the loop the partial sums.
template <class Knobs>
struct SharedMap {
  using Steps = tile::Ring<Step<Knobs>, Knobs::kStages, Knobs::kWarps>;
  using WeightProduct = tile::AccumMeeting<Knobs::kRows, Knobs::kTokens, Knobs::kWarps>;
  using LoraBTile = tile::Kept<T, Knobs::kRows, R>;
  using LoraAProductTotalKept = tile::Kept<T, Knobs::kTokens, R>;
  using LoraAProductProduct = tile::AccumMeeting<Knobs::kRows, Knobs::kTokens, 1>;
  static constexpr int kLoraBTileAt = 0;  // from the start
  static constexpr int kLoraAProductTotalKeptAt = kLoraBTileAt + LoraBTile::kBytes;
  static constexpr int kLoraAProductProductAt =
      kLoraAProductTotalKeptAt + LoraAProductTotalKept::kBytes;
  static constexpr int kStepsAt = kLoraAProductProductAt + LoraAProductProduct::kBytes;
  static constexpr int kWeightProductAt = kLoraAProductProductAt + LoraAProductProduct::kBytes;
  static constexpr int kMeetingBytes = kWeightProductAt + WeightProduct::kBytes;
  static constexpr int kBytes = tile::larger(kStepsAt + Steps::kBytes, kMeetingBytes);
};

template <class Knobs>
__global__ void __launch_bounds__(kThreads<Knobs> + tile::kWarpLanes, 1)
    lora_linear(const __grid_constant__ LaunchArgs args) {
  constexpr int kRows = Knobs::kRows, kTokens = Knobs::kTokens, kWarps = Knobs::kWarps;
  using Step = generated::Step<Knobs>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = N % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  using Shared = SharedMap<Knobs>;
  extern __shared__ __align__(16) char shared[];
  tile::let_next_start();
  const Apart<Knobs> apart(args);
  if (apart.makes()) return making::lora_linear<Knobs>(args, shared);

  const T* x = static_cast<const T*>(args.inputs[0]);       // [M, K]
  const T* weight = static_cast<const T*>(args.inputs[1]);  // [N, K]
  const T* lora_b = static_cast<const T*>(args.inputs[3]);  // [N, R]
  T* out = static_cast<T*>(args.outputs[0]);                // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float scale = args.scalars[0];
  const int first_row = apart.user() * kRows, first_token = blockIdx.y * kTokens;

  if (tile::warp_index() == kWarps) {
    if (!args.constant_weights) tile::wait_for_previous();
    const typename Shared::LoraBTile lora_b_tile{shared + Shared::kLoraBTileAt};
    tile::fetch<tile::kWarpLanes>(lora_b_tile, lora_b, first_row, N);
    tile::commit_copies();
    tile::wait_for_previous();
    const typename Shared::LoraAProductTotalKept lora_a_product_total_kept{
        shared + Shared::kLoraAProductTotalKeptAt};
    apart.receive(lora_a_product_total_kept);
    tile::wait_copies<0>();
    __syncwarp();
    tile::contract_alone(shared + Shared::kLoraAProductProductAt, lora_b_tile,
                         lora_a_product_total_kept);
    tile::sync_received<kWarps>();
    return;
  }
  const auto x_edge = tile::edge<false, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto weight_edge =
      tile::edge<kEvenRows, kEvenDepth>(weight, tile::Static<K>{}, {first_row, N, K});

  tile::Accum<kRows, kTokens> weight_product;  // [M, N]

  const auto copy_weights = [&](tile::Slot<Step> slot, int k) {
    tile::copy<tile::Cache::kStream>(slot, &Step::weight_tile, weight_edge, k);
  };
  const auto copy_tokens = [&](tile::Slot<Step> slot, int k) {
    tile::copy<tile::Cache::kKeep>(slot, &Step::x_tile, x_edge, k);
  };
  const auto compute = [&](const Step& step) {
    tile::contract(weight_product, step.weight_tile, step.x_tile);  // [M, N]
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  tile::pipeline<Knobs::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                       compute);
  tile::sync_streams<kWarps>();

  const auto weight_product_parts =
      tile::meet<kWarps>(shared + Shared::kWeightProductAt, weight_product);
  tile::sync_received<kWarps>();

  const auto lora_a_product_product_parts =
      Shared::LoraAProductProduct::in(shared + Shared::kLoraAProductProductAt);
  const tile::OutputTile out_tile{first_row, N, first_token, M};
  tile::for_each_element<kRows, kTokens, kThreads<Knobs>>(out_tile, [&](tile::Element e) {
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float lora_a_product_product = tile::sum_over_warps(lora_a_product_product_parts, e);
    const float scaled_lora_a_product_product = tile::mul(scale, lora_a_product_product);  // [N, M]
    const float scaled_lora_a_product_product_plus =
        tile::add(weight_product_total, scaled_lora_a_product_product);
    tile::store(out, out_tile, e, scaled_lora_a_product_product_plus);  // [M, N]
  });
}

template <class Knobs>
cudaError_t launch(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t row_tiles = Apart<Knobs>::kMakers + tile::ceil_div(N, Knobs::kRows);
  const int64_t token_tiles = tile::ceil_div(args.dims[0], Knobs::kTokens);
  constexpr int kSharedBytes = tile::larger(SharedMap<Knobs>::kBytes, kMakerBytes<Knobs>);
  const tile::Grid grid{row_tiles, token_tiles, kThreads<Knobs> + tile::kWarpLanes, kSharedBytes};
  return tile::launch(lora_linear<Knobs>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
