// mirage-kernels generate layer_norm_linear_full --arch sm_90a --dtype fp16 --shape K=4096,N=4096
//
// Formula   [M, N] = linear(layer_norm(x, eps) * norm_weight + norm_bias, weight) + bias
// Shape     GPT-J-6B q_proj, TP 1 (no bias)
// Proved    equal to the recipe on 18 random draws over finite fields, for the tiles of all 4
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-56.8.
// Accuracy  emulated error against float64 (unfused program's): unit 2.7e-04 (3.3e-04), tiny
//           2.6e-04 (3.1e-04), outliers 2.7e-04 (3.2e-04), wide 2.7e-04 (3.2e-04).

#include "launch.h"

#include "../../forms/layer_norm_linear_full/prologue.cuh"
#include "../../forms/layer_norm_linear_full/register_operand.cuh"
#include "../../forms/layer_norm_linear_full/sliced_k.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __half;
  static constexpr int K = 4096, N = 4096;
};
struct UpTo8M : Shape {  // 128 blocks of 8 warps, 169 KiB
  static constexpr int kTokens = 8, kRows = 32, kWarps = 8, kChunks = 1, kStages = 6;
};
struct UpTo16M : Shape {  // a block per token, then 128 blocks of 8 warps, 145 KiB
  static constexpr int kTokens = 16, kRows = 32, kStages = 12, kGroups = 2, kBlocks = 1;
  static constexpr int kPrologueWarps = 4;
};
struct UpTo32M : Shape {  // a block per token, then 64 clusters of 2 blocks, 116 KiB
  static constexpr int kTokens = 32, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2;
  static constexpr int kPrologueWarps = 4;
};
struct AnyM : Shape {  // a block per token, then each 64 tokens: 64 clusters of 2 blocks, 145 KiB
  static constexpr int kTokens = 64, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2;
  static constexpr int kPrologueWarps = 4;
};

}  // namespace

cudaError_t layer_norm_linear_full_K4096_N4096_fp16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[3] != Shape::K) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch_after_prologue<UpTo16M>(args, stream);
  if (M <= 32) return launch_after_prologue<UpTo32M>(args, stream);
  return launch_after_prologue<AnyM>(args, stream);
}

int64_t layer_norm_linear_full_K4096_N4096_fp16_workspace(const LaunchArgs& args) {
  const int64_t M = args.dims[0];
  if (M <= 8) return 0;
  if (M <= 16) return workspace<UpTo16M>(args);
  if (M <= 32) return workspace<UpTo32M>(args);
  return workspace<AnyM>(args);
}

}  // namespace mirage::generated
