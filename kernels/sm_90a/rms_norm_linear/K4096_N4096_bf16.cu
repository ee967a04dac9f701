// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype bf16 --shape K=4096,N=4096
//
// Formula   [M, N] = linear(x / sqrt(mean(x^2) + eps) * norm_weight, weight)
// Shape     Llama-3-8B q_proj, TP 1; Chameleon-7B q_proj
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-56.8.
// Accuracy  emulated error against float64 (unfused program's): unit 2.4e-03 (2.4e-03), tiny
//           2.3e-03 (2.3e-03), outliers 2.3e-03 (2.4e-03), wide 2.3e-03 (2.3e-03).

#include "launch.h"

#include "../../forms/rms_norm_linear/cluster_split_k_bf16.cuh"
#include "../../forms/rms_norm_linear/register_operand.cuh"
#include "../../forms/rms_norm_linear/sliced_k_bf16.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int K = 4096, N = 4096;
};
struct UpTo8M : Shape {  // 128 blocks of 8 warps, 192 KiB
  static constexpr int kTokens = 8, kRows = 32, kWarps = 8, kChunks = 2, kStages = 4;
};
struct UpTo16M : Shape {  // 128 blocks of 8 warps, 224 KiB
  static constexpr int kTokens = 16, kRows = 32, kWarps = 8, kChunks = 2, kStages = 4;
};
struct UpTo32M : Shape {  // 64 clusters of 2 blocks, 116 KiB
  static constexpr int kTokens = 32, kRows = 64, kStages = 4;
  static constexpr int kGroups = 2, kTurns = 2, kTmaTiles = 2, kSets = 1;
};
struct AnyM : Shape {  // each 64 tokens: 64 clusters of 2 blocks, 150 KiB
  static constexpr int kTokens = 64, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2;
};

}  // namespace

cudaError_t rms_norm_linear_K4096_N4096_bf16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[2] != Shape::K) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch_cluster_split_k<UpTo32M>(args, stream);
  return launch_register_operand<AnyM>(args, stream);
}

}  // namespace mirage::generated
