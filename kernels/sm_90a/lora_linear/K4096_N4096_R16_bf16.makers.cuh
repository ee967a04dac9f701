// mirage-kernels generate lora_linear --arch sm_90a --dtype bf16 --shape K=4096,N=4096,R=16
//
// Makers  the first blocks of a launch make lora_a_product_total once, for all others. What
//         K4096_N4096_R16_bf16.cu launches: up to 8 tokens: 1 block for the inner product, 217 KiB
//         shared, and 128 blocks of 8 warps, 203 KiB shared; up to 16 tokens: 2 blocks for the
//         inner product, 217 KiB shared, and 128 blocks of 8 warps, 149 KiB shared.
#pragma once

#include "tile/apart.cuh"
#include "tile/tile.cuh"

#include "K4096_N4096_R16_bf16.shape.cuh"

namespace mirage::generated {
namespace {

// The first blocks of the grid make lora_a_product_total for all others.
template <class Knobs>
struct ApartPlan : Knobs {
  using Element = T;
  static constexpr int kInner = R;
};
template <class Knobs>
using Apart = tile::Apart<ApartPlan<Knobs>>;

template <class Users>
struct Makers : Users {
  static constexpr int kRows = Users::kMakerRows, kTokens = Users::kMakerTokens;
  static constexpr int kWarps = Users::kMakerWarps, kChunks = 2;
  static constexpr int kStages = Users::kMakerStages;
};

namespace making {

// What a warp copies per step of the loop.
template <class Knobs>
struct Step {
  static constexpr int kDepth = Knobs::kChunks * tile::kChunkDepth;
  tile::TokenFrag<T, Knobs::kTokens, kDepth> x_tile;   // [M, K]
  tile::RowFrag<T, Knobs::kRows, kDepth> lora_a_tile;  // [R, K]
};

// Shared memory in bytes: the ring of steps, and after the loop the partial sums.
template <class Knobs>
struct SharedMap {
  using Steps = tile::Ring<Step<Knobs>, Knobs::kStages, Knobs::kWarps>;
  using LoraAProduct = tile::AccumMeeting<Knobs::kRows, Knobs::kTokens, Knobs::kWarps>;
  static constexpr int kStepsAt = 0;         // during the loop
  static constexpr int kLoraAProductAt = 0;  // after the loop
  static constexpr int kMeetingBytes = kLoraAProductAt + LoraAProduct::kBytes;
  static constexpr int kBytes = tile::larger(Steps::kBytes, kMeetingBytes);
};

template <class Users>
__device__ void lora_linear(const LaunchArgs& args, char* shared) {
  using Knobs = Makers<Users>;
  constexpr int kRows = Knobs::kRows, kTokens = Knobs::kTokens, kWarps = Knobs::kWarps;
  using Step = making::Step<Knobs>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = R % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  using Shared = SharedMap<Knobs>;

  const T* x = static_cast<const T*>(args.inputs[0]);       // [M, K]
  const T* lora_a = static_cast<const T*>(args.inputs[2]);  // [R, K]
  const int M = static_cast<int>(args.dims[0]);
  const Apart<Users> apart(args);
  const int first_row = apart.first_row(), first_token = apart.first_token();
  if (tile::warp_index() >= kWarps) return;
  uint64_t& stamp = apart.stamp(shared + Shared::kBytes);
  if (threadIdx.x == 0) stamp = tile::new_stamp();

  const auto x_edge = tile::edge<false, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto lora_a_edge =
      tile::edge<kEvenRows, kEvenDepth>(lora_a, tile::Static<K>{}, {first_row, R, K});

  tile::Accum<kRows, kTokens> lora_a_product;  // [M, R]

  const auto copy_weights = [&](tile::Slot<Step> slot, int k) {
    tile::copy<tile::Cache::kStream>(slot, &Step::lora_a_tile, lora_a_edge, k);
  };
  const auto copy_tokens = [&](tile::Slot<Step> slot, int k) {
    tile::copy<tile::Cache::kKeep>(slot, &Step::x_tile, x_edge, k);
  };
  const auto compute = [&](const Step& step) {
    tile::contract(lora_a_product, step.lora_a_tile, step.x_tile);  // [M, R]
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  tile::pipeline<Knobs::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                       compute);
  tile::sync_streams<kWarps>();

  const auto lora_a_product_parts =
      tile::meet<kWarps>(shared + Shared::kLoraAProductAt, lora_a_product);
  tile::sync_streams<kWarps>();

  const tile::OutputTile out_tile{first_row, R, first_token, M};
  apart.template make<kThreads<Knobs>>(out_tile, stamp, [&](tile::Element e) {
    const float lora_a_product_total = tile::sum_over_warps(lora_a_product_parts, e);  // [M, R]
    return lora_a_product_total;
  });
}

}  // namespace making

template <class Knobs>
constexpr int kMakerBytes = making::SharedMap<Makers<Knobs>>::kBytes + Apart<Knobs>::kStampBytes;

}  // namespace
}  // namespace mirage::generated
