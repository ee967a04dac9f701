// mirage-kernels generate lora_linear --arch sm_90a --dtype fp16 --shape K=256,N=4096,R=16
//
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)
// Shape     the Mirage paper's LoRA
// muGraph   one kernel, its loop cuts K. Its grid, in the muGraph: x cuts N, y cuts M (a launch
//           numbers its blocks as its plan needs). In the loop: weight_product, lora_a_product;
//           carried: weight_product_total, lora_a_product_total; the rest after it.
// Found     the first by predicted time of 263 proved muGraphs that passes the numeric gate and has
//           a plan (233 states, 318 candidates).
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.9.
// Accuracy  emulated error against float64 (unfused program's): unit 3.3e-04 (3.6e-04), tiny
//           3.3e-04 (3.6e-04), outliers 3.1e-04 (3.5e-04), wide 3.3e-04 (3.7e-04).
// Expects   x [M, K] rows 16-byte aligned, any row stride, weight [N, K] contiguous, lora_a [R, K]
//           contiguous, lora_b [N, R] contiguous, out [M, N] contiguous; any M >= 0.
// Launch    up to 8 tokens: 128 blocks of 8 warps, 114 KiB shared; up to 16 tokens: 128 blocks of 8
//           warps, 130 KiB shared; up to 32 tokens: 128 blocks of 8 warps, 162 KiB shared; any
//           number of tokens: for each 64 of them 256 blocks of 4 warps, 97 KiB shared.

#include "launch.h"
#include "tile/tile.cuh"

namespace mirage::generated {
namespace {

using T = __half;
constexpr int K = 256;   // contracted
constexpr int N = 4096;  // rows of the weights
constexpr int R = 16;    // contracted after the loop

struct UpTo8M {
  static constexpr int kTokens = 8, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
};
struct UpTo16M {
  static constexpr int kTokens = 16, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
};
struct UpTo32M {
  static constexpr int kTokens = 32, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
};
struct AnyM {
  static constexpr int kTokens = 64, kRows = 16, kWarps = 4, kChunks = 2, kStages = 2;
};

template <class Knobs>
constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;

// What a warp copies per step of the loop.
template <class Knobs>
struct Step {
  static constexpr int kDepth = Knobs::kChunks * tile::kChunkDepth;
  tile::TokenFrag<T, Knobs::kTokens, kDepth> x_tile;      // [M, K]
  tile::RowFrag<T, Knobs::kRows, kDepth> weight_tile;     // [N, K]
  tile::RowFrag<T, tile::padded(R), kDepth> lora_a_tile;  // [R, K]
};

// Shared memory in bytes: the ring of steps, and after the loop the partial sums.
template <class Knobs>
struct SharedMap {
  using Steps = tile::Ring<Step<Knobs>, Knobs::kStages, Knobs::kWarps>;
  using WeightProduct = tile::AccumMeeting<Knobs::kRows, Knobs::kTokens, Knobs::kWarps>;
  using LoraAProduct = tile::AccumMeeting<tile::padded(R), Knobs::kTokens, Knobs::kWarps>;
  using LoraBTile = tile::Kept<T, Knobs::kRows, R>;
  using LoraAProductTotalKept = tile::Kept<T, Knobs::kTokens, R>;
  using LoraAProductProduct = tile::AccumMeeting<Knobs::kRows, Knobs::kTokens, 1>;
  static constexpr int kLoraBTileAt = 0;                                     // from the start
  static constexpr int kStepsAt = kLoraBTileAt + LoraBTile::kBytes;          // during the loop
  static constexpr int kWeightProductAt = kLoraBTileAt + LoraBTile::kBytes;  // after the loop
  static constexpr int kLoraAProductAt = kWeightProductAt + WeightProduct::kBytes;
  static constexpr int kLoraAProductTotalKeptAt = kLoraAProductAt + LoraAProduct::kBytes;
  static constexpr int kLoraAProductProductAt =
      kLoraAProductTotalKeptAt + LoraAProductTotalKept::kBytes;
  static constexpr int kMeetingBytes = kLoraAProductProductAt + LoraAProductProduct::kBytes;
  static constexpr int kBytes = tile::larger(kStepsAt + Steps::kBytes, kMeetingBytes);
};

template <class Knobs>
__global__ void __launch_bounds__(kThreads<Knobs>, 1)
    lora_linear(const __grid_constant__ LaunchArgs args) {
  constexpr int kRows = Knobs::kRows, kTokens = Knobs::kTokens, kWarps = Knobs::kWarps;
  using Step = generated::Step<Knobs>;
  constexpr int kDepth = Step::kDepth;
  constexpr bool kEvenRows = N % kRows == 0;
  constexpr bool kEvenDepth = K % kDepth == 0;
  constexpr bool kEvenR = R % tile::kRowTile == 0;
  using Shared = SharedMap<Knobs>;
  extern __shared__ __align__(16) char shared[];
  tile::let_next_start();

  const T* x = static_cast<const T*>(args.inputs[0]);       // [M, K]
  const T* weight = static_cast<const T*>(args.inputs[1]);  // [N, K]
  const T* lora_a = static_cast<const T*>(args.inputs[2]);  // [R, K]
  const T* lora_b = static_cast<const T*>(args.inputs[3]);  // [N, R]
  T* out = static_cast<T*>(args.outputs[0]);                // [M, N]
  const int M = static_cast<int>(args.dims[0]);
  const float scale = args.scalars[0];
  const int first_row = blockIdx.x * kRows, first_token = blockIdx.y * kTokens;

  const auto x_edge = tile::edge<false, kEvenDepth>(x, args.row_strides[0], {first_token, M, K});
  const auto weight_edge =
      tile::edge<kEvenRows, kEvenDepth>(weight, tile::Static<K>{}, {first_row, N, K});
  const auto lora_a_edge = tile::edge<kEvenR, kEvenDepth>(lora_a, tile::Static<K>{}, {0, R, K});

  tile::Accum<kRows, kTokens> weight_product;            // [M, N]
  tile::Accum<tile::padded(R), kTokens> lora_a_product;  // [M, R]

  if (!args.constant_weights) tile::wait_for_previous();
  const typename Shared::LoraBTile lora_b_tile{shared + Shared::kLoraBTileAt};
  tile::fetch<kThreads<Knobs>>(lora_b_tile, lora_b, first_row, N);

  const auto copy_weights = [&](tile::Slot<Step> slot, int k) {
    tile::copy<tile::Cache::kStream>(slot, &Step::weight_tile, weight_edge, k);
    tile::copy<tile::Cache::kKeep>(slot, &Step::lora_a_tile, lora_a_edge, k);
  };
  const auto copy_tokens = [&](tile::Slot<Step> slot, int k) {
    tile::copy<tile::Cache::kKeep>(slot, &Step::x_tile, x_edge, k);
  };
  const auto compute = [&](const Step& step) {
    tile::contract(weight_product, step.weight_tile, step.x_tile);  // [M, N]
    tile::contract(lora_a_product, step.lora_a_tile, step.x_tile);  // [M, R]
  };
  const int first_k = tile::warp_index() * kDepth;
  const tile::Steps steps{first_k, K, kWarps * kDepth, args.constant_weights};
  tile::pipeline<Knobs::kStages, Step>(shared + Shared::kStepsAt, steps, copy_weights, copy_tokens,
                                       compute);
  tile::wait_copies<0>();
  __syncthreads();

  const auto weight_product_parts =
      tile::meet<kWarps>(shared + Shared::kWeightProductAt, weight_product);
  const auto lora_a_product_parts =
      tile::meet<kWarps>(shared + Shared::kLoraAProductAt, lora_a_product);
  __syncthreads();

  const typename Shared::LoraAProductTotalKept lora_a_product_total_kept{
      shared + Shared::kLoraAProductTotalKeptAt};
  const tile::OutputTile r_tile{0, R, first_token, M};
  tile::for_each_element<tile::padded(R), kTokens, kThreads<Knobs>>(r_tile, [&](tile::Element e) {
    const float lora_a_product_total = tile::sum_over_warps(lora_a_product_parts, e);  // [M, R]
    tile::keep(lora_a_product_total_kept, e, lora_a_product_total);                    // [M, R]
  });
  __syncthreads();

  const auto lora_a_product_product_parts = tile::contract_kept<kWarps>(
      shared + Shared::kLoraAProductProductAt, lora_b_tile, lora_a_product_total_kept);
  __syncthreads();

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
  const int64_t row_tiles = tile::ceil_div(N, Knobs::kRows);
  const int64_t token_tiles = tile::ceil_div(args.dims[0], Knobs::kTokens);
  constexpr int kSharedBytes = SharedMap<Knobs>::kBytes;
  const tile::Grid grid{row_tiles, token_tiles, kThreads<Knobs>, kSharedBytes};
  return tile::launch(lora_linear<Knobs>, grid, args, stream);
}

}  // namespace

cudaError_t lora_linear_K256_N4096_R16_fp16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[1] != K) return cudaErrorInvalidValue;
  if (args.row_strides[2] != K) return cudaErrorInvalidValue;
  if (args.row_strides[3] != R) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch<UpTo32M>(args, stream);
  return launch<AnyM>(args, stream);
}

}  // namespace mirage::generated
