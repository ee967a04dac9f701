// mirage-kernels generate rms_norm_gated_mlp --arch sm_90a --dtype bf16 --shape K=4096,N=14336
//
// Formula   [M, N] = silu(linear(rms_norm(x), gate_weight)) * linear(rms_norm(x), up_weight)
// Shape     Llama-3-8B, TP 1
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full K and uneven edges; a wrong muGraph passes with probability at most
//           2^-55.
// Accuracy  emulated error against float64 (unfused program's): unit 3.0e-03 (3.5e-03), tiny
//           3.0e-03 (4.0e-03), outliers 2.9e-03 (4.4e-03), wide 2.9e-03 (3.9e-03).

#include "launch.h"

#include "../../forms/rms_norm_gated_mlp/register_operand.cuh"
#include "../../forms/rms_norm_gated_mlp/sliced_k_bf16.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int K = 4096, N = 14336;
};
struct UpTo8M : Shape {  // 256 blocks of 4 warps, 128 KiB
  static constexpr int kTokens = 8, kRows = 56, kWarps = 4, kChunks = 2, kStages = 2;
};
struct UpTo16M : Shape {  // 256 blocks of 4 warps, 136 KiB
  static constexpr int kTokens = 16, kRows = 56, kWarps = 4, kChunks = 2, kStages = 2;
};
struct UpTo32M : Shape {  // 128 blocks of 4 warps, 137 KiB
  static constexpr int kTokens = 32, kRows = 112, kStages = 2, kGroups = 1, kBlocks = 1;
};
struct AnyM : Shape {  // each 64 tokens: 128 blocks of 4 warps, 153 KiB
  static constexpr int kTokens = 64, kRows = 112, kStages = 2, kGroups = 1, kBlocks = 1;
};

}  // namespace

cudaError_t rms_norm_gated_mlp_K4096_N14336_bf16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[2] != Shape::K) return cudaErrorInvalidValue;
  if (args.row_strides[3] != Shape::K) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch_register_operand<UpTo32M>(args, stream);
  return launch_register_operand<AnyM>(args, stream);
}

}  // namespace mirage::generated
