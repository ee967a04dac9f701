// mirage-kernels generate lora_linear_full
// Schedule  producer blocks: a first launch computes lora_a_product_total, each token's with its
//           own slice.
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias
#pragma once

#include "tile/batched_lora/lora.cuh"
#include "tile/tile.cuh"
#include "variants.h"

namespace mirage::generated {
namespace {

// A first launch computes lora_a_product_total, each token's with its own slice.
template <class Shape>
struct Producers : Shape {
  using Element = typename Shape::T;
  static constexpr int kRows = 16, kTokens = 8, kWarps = 4, kChunks = 2, kStages = 2, kBlocks = 8;
  static constexpr int kInner = Shape::R;
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

// Shared memory in bytes: groups, the warps' sums, what blocks of the cluster send.
template <class Config>
struct SharedMap {
  using Clusters = tile::AdapterProducers<Config>;
  using LoraAProduct = tile::AccumPartials<Config::kRows, Config::kTokens, Config::kWarps>;
  static constexpr int kLoraAProductAt = tile::kGroupsBytes;
  static constexpr int kBlocksAt = kLoraAProductAt + LoraAProduct::kBytes;
  static constexpr int kBytes = kBlocksAt + Clusters::kBytes;
};

template <class Config>
__device__ void lora_linear_batched(const LaunchArgs& args, char* shared,
                                    const tile::SliceTile& own) {
  using T = typename Config::T;
  using Clusters = tile::AdapterProducers<Config>;
  constexpr int K = Config::K, R = Config::R;
  constexpr int kRows = Config::kRows, kTokens = Config::kTokens, kWarps = Config::kWarps;
  using Step = producing::Step<Config>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = R % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  using Shared = SharedMap<Config>;

  const T* x = static_cast<const T*>(args.inputs[0]);       // [M, K]
  const T* lora_a = static_cast<const T*>(args.inputs[2]);  // [slices, R, K]
  const int M = static_cast<int>(args.dims[0]);
  const int first_row = own.first_row, first_token = own.first_token;
  const tile::AdapterGroup group = own.group;
  lora_a += int64_t{group.adapter} * R * K;
  tile::begin_reduction<Clusters>(shared + Shared::kBlocksAt, own.turn);

  const auto x_edge =
      tile::gathered_line<kEvenDepth>(x, args.row_strides[0], group, first_token, K);
  const auto lora_a_edge =
      tile::edge<kEvenRows, kEvenDepth>(lora_a, tile::Static<K>{}, {first_row, R, K});

  tile::Accum<kRows, kTokens> lora_a_product;  // [M, R]

  const auto load = [&](Step& step, int k) {
    tile::load(step.x_tile, x_edge, k);
    tile::load(step.lora_a_tile, lora_a_edge, k);
  };
  const auto compute = [&](const Step& step) {
    tile::contract(lora_a_product, step.lora_a_tile, step.x_tile);  // [M, R]
  };
  const int first_k = Clusters::warp() * kDepth;
  const tile::Steps steps{first_k, K, Config::kBlocks * kWarps * kDepth, tile::Start::at_once()};
  tile::load_and_compute<Config::kStages, Step>(steps, load, compute);
  tile::sync_pipelines<kWarps>();

  const auto lora_a_product_own =
      tile::store_partials<kWarps>(shared + Shared::kLoraAProductAt, lora_a_product);
  tile::sync_pipelines<kWarps>();

  const tile::OutputTile out_tile{first_row, R, first_token, M};
  const auto lora_a_product_parts =
      tile::reduce_blocks<Clusters>(shared + Shared::kBlocksAt, lora_a_product_own, own.turn);
  if (tile::cluster_rank() > 0) return;
  tile::publish_inner<Clusters>(args.workspace, out_tile, group, [&](tile::Element e) {
    const float lora_a_product_total = tile::sum_over_warps(lora_a_product_parts, e);  // [M, R]
    return lora_a_product_total;
  });
}

template <class Config>
__global__ void __launch_bounds__(tile::kBlockThreads<Config>)
    lora_linear_batched_producers(const __grid_constant__ LaunchArgs args) {
  using Clusters = tile::AdapterProducers<Config>;
  extern __shared__ __align__(16) char shared[];
  tile::grid_dependency_wait();
  tile::launch_dependents();
  Clusters::for_each_tile(args, shared, lora_linear_batched<Config>);
}

}  // namespace producing

template <class Shape>
cudaError_t launch_first(Shape, const LaunchArgs& args, cudaStream_t stream) {
  using Config = Producers<Shape>;
  using Clusters = tile::AdapterProducers<Config>;
  constexpr int kSharedBytes = producing::SharedMap<Config>::kBytes;
  const int64_t M = args.dims[0];
  const tile::Grid grid = Clusters::grid(M, args.slices, kSharedBytes);
  return tile::launch(producing::lora_linear_batched_producers<Config>, grid, args, stream);
}

template <class Config>
int64_t workspace(Config, const LaunchArgs& args) {
  using T = typename Config::T;
  constexpr int R = Config::R;
  return args.dims[0] * R * static_cast<int64_t>(sizeof(T));
}

}  // namespace
}  // namespace mirage::generated
