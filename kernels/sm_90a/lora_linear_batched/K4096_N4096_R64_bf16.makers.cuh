// mirage-kernels generate lora_linear_full --arch sm_90a --dtype bf16 --shape K=4096,N=4096,R=64
//
// Makers  a launch in front makes lora_a_product_total, each token's with its own slice. What
//         K4096_N4096_R64_bf16.cu launches: clusters of 8 blocks for the inner products of up to 8
//         tokens of a slice, 9 KiB shared.
#pragma once

#include "tile/adapters.cuh"
#include "tile/tile.cuh"

#include "K4096_N4096_R64_bf16.shape.cuh"

namespace mirage::generated {
namespace {

// A launch of its own makes lora_a_product_total, each token's with its own slice.
struct Makers {
  using Element = T;
  static constexpr int kRows = 16, kTokens = 8, kWarps = 4, kChunks = 2, kStages = 2, kBlocks = 8;
  static constexpr int kInner = R;
};
using Clusters = tile::AdapterMakers<Makers>;

namespace making {

// What a warp copies per step of the loop.
template <class Knobs>
struct Step {
  static constexpr int kDepth = Knobs::kChunks * tile::kChunkDepth;
  tile::TokenFrag<T, Knobs::kTokens, kDepth> x_tile;   // [M, K]
  tile::RowFrag<T, Knobs::kRows, kDepth> lora_a_tile;  // [R, K]
};

// Shared memory in bytes: tasks, the warps' sums, what blocks of the cluster send.
template <class Knobs>
struct SharedMap {
  using LoraAProduct = tile::AccumMeeting<Knobs::kRows, Knobs::kTokens, Knobs::kWarps>;
  static constexpr int kLoraAProductAt = tile::kTasksBytes;
  static constexpr int kBlocksAt = kLoraAProductAt + LoraAProduct::kBytes;
  static constexpr int kBytes = kBlocksAt + Clusters::kBytes;
};

template <class Knobs>
__device__ void lora_linear_batched(const LaunchArgs& args, char* shared,
                                    const tile::SliceTile& own) {
  constexpr int kRows = Knobs::kRows, kTokens = Knobs::kTokens, kWarps = Knobs::kWarps;
  using Step = making::Step<Knobs>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = R % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  using Shared = SharedMap<Knobs>;

  const T* x = static_cast<const T*>(args.inputs[0]);       // [M, K]
  const T* lora_a = static_cast<const T*>(args.inputs[2]);  // [slices, R, K]
  const int M = static_cast<int>(args.dims[0]);
  const int first_row = own.first_row, first_token = own.first_token;
  const tile::AdapterTask task = own.task;
  lora_a += int64_t{task.adapter} * R * K;
  tile::begin_meeting<Clusters>(shared + Shared::kBlocksAt, own.turn);

  const auto x_edge = tile::gathered_line<kEvenDepth>(x, args.row_strides[0], task, first_token, K);
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
  const tile::Steps steps{first_k, K, Knobs::kBlocks * kWarps * kDepth, tile::Start::at_once()};
  tile::load_and_compute<Knobs::kStages, Step>(steps, load, compute);
  tile::sync_streams<kWarps>();

  const auto lora_a_product_own =
      tile::meet<kWarps>(shared + Shared::kLoraAProductAt, lora_a_product);
  tile::sync_streams<kWarps>();

  const tile::OutputTile out_tile{first_row, R, first_token, M};
  const auto lora_a_product_parts =
      tile::meet_blocks<Clusters>(shared + Shared::kBlocksAt, lora_a_product_own, own.turn);
  if (tile::cluster_rank() > 0) return;
  tile::leave_inner<Clusters>(args.workspace, out_tile, task, [&](tile::Element e) {
    const float lora_a_product_total = tile::sum_over_warps(lora_a_product_parts, e);  // [M, R]
    return lora_a_product_total;
  });
}

template <class Knobs>
__global__ void __launch_bounds__(kThreads<Knobs>)
    lora_linear_batched_makers(const __grid_constant__ LaunchArgs args) {
  extern __shared__ __align__(16) char shared[];
  tile::wait_for_previous();
  tile::let_next_start();
  Clusters::for_each_tile(args, shared, lora_linear_batched<Knobs>);
}

}  // namespace making

cudaError_t launch_makers(const LaunchArgs& args, cudaStream_t stream) {
  constexpr int kSharedBytes = making::SharedMap<Makers>::kBytes;
  const int64_t M = args.dims[0];
  const tile::Grid grid = Clusters::grid(M, args.slices, kSharedBytes);
  return tile::launch(making::lora_linear_batched_makers<Makers>, grid, args, stream);
}

}  // namespace
}  // namespace mirage::generated
