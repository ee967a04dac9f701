// mirage-kernels generate lora_linear_full --arch sm_90a --dtype fp16 --shape K=4096,N=4096,R=64
//
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias
// Shape     Llama-3-8B q_proj and o_proj, TP 1 (no bias)
// muGraph   that of lora_linear_full, for every token with its own slices of lora_a and lora_b;
//           which those are is addressing. one kernel; grid.x cuts N, grid.y cuts M, the loop cuts
//           K. In the loop: weight_product, lora_a_product; carried: weight_product_total,
//           lora_a_product_total; the rest after it.
// Found     the first by predicted time of 385 proved muGraphs that passes the numeric gate and has
//           a plan (266 states, 481 candidates).
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.9.
// Accuracy  emulated error against float64 (unfused program's): unit 2.7e-04 (2.8e-04), tiny
//           1.9e-04 (1.9e-04), outliers 3.1e-04 (3.4e-04), wide 3.3e-04 (3.6e-04).
// Expects   x [M, K] rows 16-byte aligned, any row stride, weight [N, K] contiguous, lora_a
//           [slices, R, K] contiguous, lora_b [slices, N, R] contiguous, bias [N] contiguous, out
//           [M, N] contiguous; any M >= 0. A number of a slice per token, int32 or int64; any that
//           is none's: no slice.
// Launch    clusters of 8 blocks for the inner products of up to 8 tokens of a slice; then up to 8
//           tokens: 128 blocks of 8 warps, 87 KiB shared; up to 16 tokens: 128 blocks of 8 warps,
//           105 KiB shared; up to 32 tokens: 64 clusters of 2 blocks that split the loop, which
//           hold tokens in registers, 126 KiB shared; any number of tokens: for each 64 of them 64
//           clusters of 2 blocks that split the loop, which hold tokens in registers, 167 KiB
//           shared.

#include "launch.h"
#include "tile/adapters.cuh"
#include "tile/held_meeting.cuh"
#include "tile/tile.cuh"

namespace mirage::generated {
namespace {

using T = __half;
constexpr int K = 4096;  // contracted
constexpr int N = 4096;  // rows of the weights
constexpr int R = 64;    // contracted after the loop

struct UpTo8M {
  static constexpr int kTokens = 8, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
  static constexpr int kSlices = 8;
};
struct UpTo16M {
  static constexpr int kTokens = 16, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
  static constexpr int kSlices = 8;
};
struct UpTo32M {
  static constexpr int kTokens = 32, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2;
  static constexpr int kSlices = 8;
};
struct AnyM {
  static constexpr int kTokens = 64, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2;
  static constexpr int kSlices = 8;
};

template <class Knobs>
constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;

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
  using LoraBTile = tile::SliceRing<T, Knobs::kRows, R, Knobs::kSlices>;
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
    lora_linear_batched(const __grid_constant__ LaunchArgs args) {
  constexpr int kRows = Knobs::kRows, kTokens = Knobs::kTokens, kWarps = Knobs::kWarps;
  using Step = generated::Step<Knobs>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = N % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  using Shared = SharedMap<Knobs>;
  extern __shared__ __align__(16) char shared[];
  tile::let_next_start();

  const T* x = static_cast<const T*>(args.inputs[0]);       // [M, K]
  const T* weight = static_cast<const T*>(args.inputs[1]);  // [N, K]
  const T* lora_b = static_cast<const T*>(args.inputs[3]);  // [slices, N, R]
  const T* bias = static_cast<const T*>(args.inputs[4]);    // [N]
  T* out = static_cast<T*>(args.outputs[0]);                // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float scale = args.scalars[0];
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;

  if (tile::warp_index() == kWarps) {
    const typename Shared::LoraBTile lora_b_tile{shared + Shared::kLoraBTileAt};
    const typename Shared::LoraAProductTotalKept lora_a_product_total_kept{
        shared + Shared::kLoraAProductTotalKeptAt};
    const tile::OutputTile out_tile{first_row, N, first_token, M};
    tile::contract_adapters(shared + Shared::kLoraAProductProductAt, lora_b_tile,
                            lora_a_product_total_kept, args, lora_b, out_tile);
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
  const tile::Steps steps{first_k, K, kWarps * kDepth, tile::Start::at_once()};
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
    const float bias_tile = tile::load_row(bias, out_tile, e);                         // [N]
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float lora_a_product_product = tile::sum_over_warps(lora_a_product_product_parts, e);
    const float weight_product_plus_bias = tile::add(bias_tile, weight_product_total);     // [N, M]
    const float scaled_lora_a_product_product = tile::mul(scale, lora_a_product_product);  // [N, M]
    const float scaled_lora_a_product_product_plus =
        tile::add(weight_product_plus_bias, scaled_lora_a_product_product);
    tile::store(out, out_tile, e, scaled_lora_a_product_product_plus);  // [M, N]
  });
}

template <class Knobs>
cudaError_t launch(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t row_tiles = tile::ceil_div(N, Knobs::kRows);
  const int64_t token_tiles = tile::ceil_div(args.dims[0], Knobs::kTokens);
  constexpr int kSharedBytes = tile::larger(SharedMap<Knobs>::kBytes, tile::kAloneBytes);
  const tile::Grid grid{row_tiles, token_tiles, kThreads<Knobs> + tile::kWarpLanes, kSharedBytes};
  return tile::launch(lora_linear_batched<Knobs>, grid, args, stream);
}

template <class Knobs>
constexpr int kOwn = Knobs::kRows / Knobs::kBlocks;  // rows that a block finishes

// Where tokens are many, they are held in registers, on the M side of products.
template <class Knobs>
struct HeldPlan : Knobs {
  using Element = T;
  static constexpr int kDepth = K, kRowTensors = 1;
  static constexpr int kProducts = 1;
  static constexpr int kInner = 0;
  static constexpr int kBesideBytes = tile::SliceRing<T, kOwn<Knobs>, R, Knobs::kSlices>::kBytes +
                                      tile::Kept<T, Knobs::kTokens, R>::kBytes +
                                      tile::AccumMeeting<kOwn<Knobs>, Knobs::kTokens, 1>::kBytes;
};
template <class Knobs>
using HeldBlock = tile::HeldBlock<HeldPlan<Knobs>>;
template <class Knobs>
constexpr int kHeldThreads = HeldBlock<Knobs>::kThreads + tile::kWarpLanes;

// Shared memory beside the ring, and in its place after the loop.
template <class Knobs>
struct HeldMap {
  using Block = HeldBlock<Knobs>;
  using WeightProduct = tile::HeldMeeting<Block>;
  using LoraBTile = tile::SliceRing<T, kOwn<Knobs>, R, Knobs::kSlices>;
  using LoraAProductTotalKept = tile::Kept<T, Knobs::kTokens, R>;
  using LoraAProductProduct = tile::AccumMeeting<kOwn<Knobs>, Knobs::kTokens, 1>;
  using Staging = tile::HeldStaging<Block>;
  static constexpr int kLoraBTileAt = Block::kRingBytes;
  static constexpr int kLoraAProductTotalKeptAt = kLoraBTileAt + LoraBTile::kBytes;
  static constexpr int kLoraAProductProductAt =
      kLoraAProductTotalKeptAt + LoraAProductTotalKept::kBytes;
  static constexpr int kWeightProductAt = 0;
  static constexpr int kStagingAt = kWeightProductAt + WeightProduct::kBytes;
  static_assert(kStagingAt + Staging::kBytes <= Block::kRingBytes);
};

struct HeldArgs {
  LaunchArgs call;
  CUtensorMap maps[2];  // x, weight
};

template <class Knobs>
__global__ void __launch_bounds__(kHeldThreads<Knobs>, 1)
    lora_linear_batched_held(const __grid_constant__ HeldArgs given) {
  using Block = HeldBlock<Knobs>;
  using Shared = HeldMap<Knobs>;
  extern __shared__ __align__(tile::kBoxAtom) char boxes[];
  char* const shared = boxes;
  tile::let_next_start();

  const LaunchArgs& args = given.call;
  const T* lora_b = static_cast<const T*>(args.inputs[3]);  // [slices, N, R]
  const T* bias = static_cast<const T*>(args.inputs[4]);    // [N]
  T* out = static_cast<T*>(args.outputs[0]);                // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float scale = args.scalars[0];
  const int box_row = blockIdx.x / Block::kBlocks * Block::kRows;
  const int first_row = box_row + Block::rank() * Block::kOwnRows;
  const int first_token = blockIdx.y * Block::kTokens;

  if (tile::warp_index() > Block::kWarps) {
    Block::tell_cluster();
    const typename Shared::LoraBTile lora_b_tile{shared + Shared::kLoraBTileAt};
    const typename Shared::LoraAProductTotalKept lora_a_product_total_kept{
        shared + Shared::kLoraAProductTotalKeptAt};
    const tile::OutputTile out_tile{first_row, N, first_token, M};
    tile::contract_adapters(shared + Shared::kLoraAProductProductAt, lora_b_tile,
                            lora_a_product_total_kept, args, lora_b, out_tile);
    tile::sync_received<Block::kWarps>();
    return;
  }
  const Block block{shared, tile::token_lines<Block>(given.call.dims[0])};
  block.begin();

  tile::HeldAccum<Block::kRows> weight_product;  // [M, N]

  if (block.copies()) {
    const auto copy_weights = [&](const auto& slot, int k) {
      tile::copy_box(slot.rows(0), given.maps[1], box_row, k, slot.full);
    };
    const auto copy_tokens = [&](const auto& slot, int k) {
      tile::copy_box(slot.tokens(), given.maps[0], first_token, k, slot.full);
    };
    tile::copy_ready(block, copy_weights, copy_tokens);
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
  tile::sync_received<Block::kWarps>();
  tile::collect(block, shared + Shared::kWeightProductAt, 0, weight_product_parts);

  const auto lora_a_product_product_parts =
      Shared::LoraAProductProduct::in(shared + Shared::kLoraAProductProductAt);
  const tile::OutputTile out_tile{first_row, N, first_token, M};
  const auto finish = [&](tile::DealtElement e) {
    const float bias_tile = tile::load_row(bias, out_tile, e);                         // [N]
    const float weight_product_total = tile::sum_over_warps(weight_product_parts, e);  // [M, N]
    const float lora_a_product_product = tile::sum_over_warps(lora_a_product_product_parts, e);
    const float weight_product_plus_bias = tile::add(bias_tile, weight_product_total);     // [N, M]
    const float scaled_lora_a_product_product = tile::mul(scale, lora_a_product_product);  // [N, M]
    const float scaled_lora_a_product_product_plus =
        tile::add(weight_product_plus_bias, scaled_lora_a_product_product);
    tile::store(out, out_tile, e, scaled_lora_a_product_product_plus);  // [M, N]
  };
  tile::for_each_held(block, shared + Shared::kStagingAt, out_tile, out, finish);
}

template <class Knobs>
cudaError_t launch_held(const LaunchArgs& args, cudaStream_t stream) {
  using Block = HeldBlock<Knobs>;
  HeldArgs given{args};
  const tile::Tensor x{args.inputs[0], args.dims[0], K, args.row_strides[0]};
  cudaError_t status = tile::encode<T>(&given.maps[0], x, tile::token_lines<Block>(args.dims[0]));
  if (status != cudaSuccess) return status;
  const tile::Tensor weight{args.inputs[1], N, K, K};
  status = tile::encode<T>(&given.maps[1], weight, Block::kRows);
  if (status != cudaSuccess) return status;
  const int64_t row_tiles = tile::ceil_div(N, Block::kRows) * Block::kBlocks;
  const int64_t token_tiles = tile::ceil_div(args.dims[0], Block::kTokens);
  constexpr int kSharedBytes = tile::larger(Block::kBytes, tile::kAloneBytes);
  const tile::Grid grid{row_tiles, token_tiles, kHeldThreads<Knobs>, kSharedBytes, Block::kBlocks};
  return tile::launch(lora_linear_batched_held<Knobs>, grid, given, stream);
}

template <class Knobs>
int64_t workspace(const LaunchArgs& args) {
  return args.dims[0] * R * static_cast<int64_t>(sizeof(T));
}

}  // namespace

cudaError_t lora_linear_batched_K4096_N4096_R64_fp16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[1] != K) return cudaErrorInvalidValue;
  if (args.row_strides[2] != K) return cudaErrorInvalidValue;
  if (args.row_strides[3] != R) return cudaErrorInvalidValue;
  const cudaError_t status = launch_makers(args, stream);
  if (status != cudaSuccess) return status;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch_held<UpTo32M>(args, stream);
  return launch_held<AnyM>(args, stream);
}

int64_t lora_linear_batched_K4096_N4096_R64_fp16_workspace(const LaunchArgs& args) {
  const int64_t M = args.dims[0];
  if (M <= 8) return workspace<UpTo8M>(args);
  if (M <= 16) return workspace<UpTo16M>(args);
  if (M <= 32) return workspace<UpTo32M>(args);
  return workspace<AnyM>(args);
}

}  // namespace mirage::generated
