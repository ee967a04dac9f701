// mirage-kernels generate lora_linear
// Schedule  producer blocks: the first blocks of a launch compute lora_a_product_total once, for
//           all others.
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)
#pragma once

#include "tile/producer_blocks/intermediate.cuh"
#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

// The first blocks of the grid compute lora_a_product_total for all others.
template <class Config>
struct ProducerPlan : Config {
  using Element = typename Config::T;
  static constexpr int kInner = Config::R;
};
template <class Config>
using ProducerBlocks = tile::ProducerBlocks<ProducerPlan<Config>>;

template <class Consumers>
struct Producers : Consumers {
  static constexpr int kRows = Consumers::kProducerRows, kTokens = Consumers::kProducerTokens;
  static constexpr int kWarps = Consumers::kProducerWarps, kChunks = 2;
  static constexpr int kStages = Consumers::kProducerStages;
};

namespace producing {

// What a warp copies per step of the loop.
template <class Config>
struct Step {
  using T = typename Config::T;
  static constexpr int kDepth = Config::kChunks * tile::kChunkDepth;
  tile::TokenFrag<T, Config::kTokens, kDepth> x_tile;   // [M, K]
  tile::RowFrag<T, Config::kRows, kDepth> lora_a_tile;  // [R, K]
};

// Shared memory in bytes: the pipeline's stages, and after the loop the partial sums.
template <class Config>
struct SharedMap {
  using Steps = tile::StageBuffers<Step<Config>, Config::kStages, Config::kWarps>;
  using LoraAProduct = tile::AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>;
  static constexpr int kStepsAt = 0;         // during the loop
  static constexpr int kLoraAProductAt = 0;  // after the loop
  static constexpr int kPartialsBytes = kLoraAProductAt + LoraAProduct::kBytes;
  static constexpr int kBytes = tile::larger(Steps::kBytes, kPartialsBytes);
};

template <class Consumers>
__device__ void lora_linear(const LaunchArgs& args, char* shared) {
  using Config = Producers<Consumers>;
  using T = typename Config::T;
  constexpr int K = Config::K, R = Config::R;
  constexpr int kThreads = tile::kBlockThreads<Config>;
  constexpr int kRows = Config::kRows, kTokens = Config::kTokens, kWarps = Config::kWarps;
  using Step = producing::Step<Config>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = R % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  using Shared = SharedMap<Config>;

  const T* x = static_cast<const T*>(args.inputs[0]);       // [M, K]
  const T* lora_a = static_cast<const T*>(args.inputs[2]);  // [R, K]
  const int M = static_cast<int>(args.dims[0]);
  const ProducerBlocks<Consumers> producers(args);
  const int first_row = producers.first_row(), first_token = producers.first_token();
  if (tile::warp_index() >= kWarps) return;
  uint64_t& tag = producers.tag(shared + Shared::kBytes);
  if (threadIdx.x == 0) tag = tile::new_tag();

  const auto x_edge =
      tile::lane_edge<Step, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto lora_a_edge =
      tile::edge<kEvenRows, kEvenDepth>(lora_a, tile::Static<K>{}, {first_row, R, K});

  tile::Accum<kRows, kTokens> lora_a_product;  // [M, R]

  const auto copy_weights = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kStream>(buffer, &Step::lora_a_tile, lora_a_edge, k);
  };
  const auto copy_tokens = [&](tile::StageBuffer<Step> buffer, int k) {
    tile::copy<tile::Cache::kKeep>(buffer, &Step::x_tile, x_edge, k);
  };
  const auto compute = [&](const Step& step) {
    tile::contract(lora_a_product, step.lora_a_tile, step.x_tile);  // [M, R]
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  tile::pipeline<Config::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                        compute);
  tile::sync_pipelines<kWarps>();

  const auto lora_a_product_parts =
      tile::store_partials<kWarps>(shared + Shared::kLoraAProductAt, lora_a_product);
  tile::sync_pipelines<kWarps>();

  const tile::OutputTile out_tile{first_row, R, first_token, M};
  producers.template make<kThreads>(out_tile, tag, [&](tile::Element e) {
    const float lora_a_product_total = tile::sum_over_warps(lora_a_product_parts, e);  // [M, R]
    return lora_a_product_total;
  });
}

}  // namespace producing

template <class Config>
constexpr int kProducerBytes =
    producing::SharedMap<Producers<Config>>::kBytes + ProducerBlocks<Config>::kTagBytes;

template <class Config>
int64_t workspace(Config, const LaunchArgs& args) {
  constexpr int N = Config::N;
  // Two blocks may share rows, and each is told.
  return ProducerBlocks<Config>::bytes(args.dims[0], 2 * tile::ceil_div(N, Config::kRows));
}

}  // namespace
}  // namespace mirage::generated
