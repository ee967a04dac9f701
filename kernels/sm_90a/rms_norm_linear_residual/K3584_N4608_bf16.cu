// mirage-kernels generate rms_norm_linear_residual --arch sm_90a --dtype bf16 --shape K=3584,N=4608
//
// Formula   [M, N] = linear(rms_norm(total, norm_weight + weight_offset), weight) + bias; total = x
//           + residual
// Shape     Qwen2-7B qkv_proj, TP 1 (weight_offset is 0)
// Proved    equal to the recipe on 8 random draws over finite fields, for the tiles of both
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-56.8.
// Accuracy  emulated error against float64 (unfused program's): unit 2.5e-03 (3.0e-03), tiny
//           2.4e-03 (2.7e-03), outliers 2.1e-03 (2.6e-03), wide 2.6e-03 (3.0e-03).

#include "launch.h"

#include "../../forms/rms_norm_linear_residual/sliced_k_bf16.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int K = 3584, N = 4608;
};
struct UpTo8M : Shape {  // 116 blocks of 8 warps, 192 KiB
  static constexpr int kTokens = 8, kRows = 40, kWarps = 8, kChunks = 2, kStages = 3;
};
struct AnyM : Shape {  // each 16 tokens: 116 blocks of 8 warps, 160 KiB
  static constexpr int kTokens = 16, kRows = 40, kWarps = 8, kChunks = 2, kStages = 2;
};

}  // namespace

cudaError_t rms_norm_linear_residual_K3584_N4608_bf16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[2] != Shape::K) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  return launch<AnyM>(args, stream);
}

}  // namespace mirage::generated
