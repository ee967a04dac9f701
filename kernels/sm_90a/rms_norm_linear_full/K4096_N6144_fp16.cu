// mirage-kernels generate rms_norm_linear_full --arch sm_90a --dtype fp16 --shape K=4096,N=6144
//
// Formula   [M, N] = linear(rms_norm(x, norm_weight + weight_offset), weight) + bias
// Shape     Llama-3-8B qkv_proj, TP 1 (no bias, weight_offset is 0)
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-56.8.
// Accuracy  emulated error against float64 (unfused program's): unit 2.6e-04 (3.2e-04), tiny
//           2.4e-04 (2.9e-04), outliers 2.6e-04 (3.1e-04), wide 2.7e-04 (3.2e-04).

#include "launch.h"

#include "../../forms/rms_norm_linear_full/cluster_split_k_fp16.cuh"
#include "../../forms/rms_norm_linear_full/sliced_k_fp16.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __half;
  static constexpr int K = 4096, N = 6144;
};
struct UpTo8M : Shape {  // 128 blocks of 8 warps, 192 KiB
  static constexpr int kTokens = 8, kRows = 48, kWarps = 8, kChunks = 2, kStages = 3;
};
struct UpTo16M : Shape {  // 128 blocks of 8 warps, 216 KiB
  static constexpr int kTokens = 16, kRows = 48, kWarps = 8, kChunks = 2, kStages = 3;
};
struct UpTo32M : Shape {  // 128 blocks of 8 warps, 176 KiB
  static constexpr int kTokens = 32, kRows = 48, kWarps = 8, kChunks = 2, kStages = 2;
};
struct AnyM : Shape {  // each 64 tokens: 64 clusters of 2 blocks, 143 KiB
  static constexpr int kTokens = 64, kRows = 96, kStages = 6;
  static constexpr int kGroups = 2, kTurns = 1, kTmaTiles = 1, kSets = 2;
};

}  // namespace

cudaError_t rms_norm_linear_full_K4096_N6144_fp16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[2] != Shape::K) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch<UpTo32M>(args, stream);
  return launch_cluster_split_k<AnyM>(args, stream);
}

}  // namespace mirage::generated
