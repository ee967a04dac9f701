// mirage-kernels generate gated_mlp --arch sm_90a --dtype bf16 --shape K=4096,N=14336
//
// Formula   [M, N] = silu(linear(x, gate_weight)) * linear(x, up_weight)
// Shape     Llama-3-8B, TP 1
// muGraph   one kernel, its loop cuts K. Its grid, in the muGraph: x cuts N, y cuts M (a launch
//           numbers its blocks as its plan needs). In the loop: up_product, gate_product; carried:
//           up_product_total, gate_product_total; the rest after it.
// Found     the first by predicted time of 40 proved muGraphs that passes the numeric gate and has
//           a plan (63 states, 40 candidates).
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full K and uneven edges; a wrong muGraph passes with probability at most
//           2^-57.3.
// Accuracy  emulated error against float64 (unfused program's): unit 1.7e-03 (3.2e-03), tiny
//           1.7e-03 (2.7e-03), outliers 1.6e-03 (2.7e-03), wide 1.7e-03 (2.8e-03).
// Expects   x [M, K] rows 16-byte aligned, any row stride, gate_weight [N, K] contiguous, up_weight
//           [N, K] contiguous, out [M, N] contiguous; any M >= 0.
// Launch    up to 8 tokens: 256 blocks of 4 warps, 180 KiB shared; up to 16 tokens: 256 blocks of 4
//           warps, 128 KiB shared; up to 32 tokens: 128 blocks of 4 warps, which hold tokens in
//           registers, 129 KiB shared; any number of tokens: for each 64 of them 128 blocks of 4
//           warps, which hold tokens in registers, 145 KiB shared.
// Plans     in files beside this one: .slices.cuh, .held.cuh; what they share: .shape.cuh.

#include "launch.h"

#include "K4096_N14336_bf16.held.cuh"
#include "K4096_N14336_bf16.shape.cuh"
#include "K4096_N14336_bf16.slices.cuh"

namespace mirage::generated {
namespace {

struct UpTo8M {
  static constexpr int kTokens = 8, kRows = 56, kWarps = 4, kChunks = 2, kStages = 3;
};
struct UpTo16M {
  static constexpr int kTokens = 16, kRows = 56, kWarps = 4, kChunks = 2, kStages = 2;
};
struct UpTo32M {
  static constexpr int kTokens = 32, kRows = 112, kStages = 2, kGroups = 1, kBlocks = 1,
                       kBarriers = 2;
};
struct AnyM {
  static constexpr int kTokens = 64, kRows = 112, kStages = 2, kGroups = 1, kBlocks = 1,
                       kBarriers = 2;
};

}  // namespace

cudaError_t gated_mlp_K4096_N14336_bf16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[1] != K) return cudaErrorInvalidValue;
  if (args.row_strides[2] != K) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch_held<UpTo32M>(args, stream);
  return launch_held<AnyM>(args, stream);
}

}  // namespace mirage::generated
