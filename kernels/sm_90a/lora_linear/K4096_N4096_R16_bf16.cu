// mirage-kernels generate lora_linear --arch sm_90a --dtype bf16 --shape K=4096,N=4096,R=16
//
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)
// Shape     Llama-3-8B q_proj and o_proj, TP 1; Qwen3-8B q_proj
// muGraph   one kernel, its loop cuts K. Its grid, in the muGraph: x cuts N, y cuts M (a launch
//           numbers its blocks as its plan needs). In the loop: weight_product, lora_a_product;
//           carried: weight_product_total, lora_a_product_total; the rest after it.
// Found     the first by predicted time of 263 proved muGraphs that passes the numeric gate and has
//           a plan (233 states, 318 candidates).
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.9.
// Accuracy  emulated error against float64 (unfused program's): unit 2.6e-03 (2.8e-03), tiny
//           2.6e-03 (2.8e-03), outliers 2.5e-03 (2.8e-03), wide 2.6e-03 (2.9e-03).
// Expects   x [M, K] rows 16-byte aligned, any row stride, weight [N, K] contiguous, lora_a [R, K]
//           contiguous, lora_b [N, R] contiguous, out [M, N] contiguous; any M >= 0.
// Launch    up to 8 tokens: 1 block for the inner product, 217 KiB shared, and 128 blocks of 8
//           warps, 203 KiB shared; up to 16 tokens: 2 blocks for the inner product, 217 KiB shared,
//           and 128 blocks of 8 warps, 149 KiB shared; up to 32 tokens: 4 blocks for the inner
//           product, 131 KiB shared, and 64 clusters of 2 blocks that split the loop, which hold
//           tokens in registers, 120 KiB shared; any number of tokens: for each 64 of them 4 blocks
//           for the inner product, 195 KiB shared, and 64 clusters of 2 blocks that split the loop,
//           which hold tokens in registers, 158 KiB shared. Where two sizes of shared memory stand,
//           every block of the launch has the larger.
// Plans     in files beside this one: .makers.cuh, .slices.cuh, .held_makers.cuh, .held.cuh; what
//           they share: .shape.cuh.

#include "launch.h"

#include "K4096_N4096_R16_bf16.held.cuh"
#include "K4096_N4096_R16_bf16.held_makers.cuh"
#include "K4096_N4096_R16_bf16.makers.cuh"
#include "K4096_N4096_R16_bf16.shape.cuh"
#include "K4096_N4096_R16_bf16.slices.cuh"

namespace mirage::generated {
namespace {

struct UpTo8M {
  static constexpr int kTokens = 8, kRows = 32, kWarps = 8, kChunks = 2, kStages = 5;
  static constexpr int kMakerRows = 16, kMakerTokens = 8, kMakerWarps = 8, kMakerStages = 9;
};
struct UpTo16M {
  static constexpr int kTokens = 16, kRows = 32, kWarps = 8, kChunks = 2, kStages = 3;
  static constexpr int kMakerRows = 16, kMakerTokens = 8, kMakerWarps = 8, kMakerStages = 9;
};
struct UpTo32M {
  static constexpr int kTokens = 32, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2;
  static constexpr int kMakerRows = 8, kMakerTokens = 16, kMakerStages = 16, kMakerGroups = 1;
};
struct AnyM {
  static constexpr int kTokens = 64, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2,
                       kBarriers = 2;
  static constexpr int kMakerRows = 8, kMakerTokens = 32, kMakerStages = 16, kMakerGroups = 1;
};

template <class Knobs>
int64_t workspace(const LaunchArgs& args) {
  // Two blocks may share rows, and each is told.
  return Apart<Knobs>::bytes(args.dims[0], 2 * tile::ceil_div(N, Knobs::kRows));
}

}  // namespace

cudaError_t lora_linear_K4096_N4096_R16_bf16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[1] != K) return cudaErrorInvalidValue;
  if (args.row_strides[2] != K) return cudaErrorInvalidValue;
  if (args.row_strides[3] != R) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch_held<UpTo32M>(args, stream);
  return launch_held<AnyM>(args, stream);
}

int64_t lora_linear_K4096_N4096_R16_bf16_workspace(const LaunchArgs& args) {
  const int64_t M = args.dims[0];
  if (M <= 8) return workspace<UpTo8M>(args);
  if (M <= 16) return workspace<UpTo16M>(args);
  if (M <= 32) return workspace<UpTo32M>(args);
  return workspace<AnyM>(args);
}

}  // namespace mirage::generated
