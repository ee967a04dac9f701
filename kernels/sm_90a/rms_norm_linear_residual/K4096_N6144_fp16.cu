// mirage-kernels generate rms_norm_linear_residual --arch sm_90a --dtype fp16 --shape K=4096,N=6144
//
// Formula   [M, N] = linear(rms_norm(total, norm_weight + weight_offset), weight) + bias; total = x
//           + residual
// Shape     Llama-3-8B qkv_proj, TP 1 (no bias, weight_offset is 0)
// Proved    equal to the recipe on 8 random draws over finite fields, for the tiles of both
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-56.8.
// Accuracy  emulated error against float64 (unfused program's): unit 3.1e-04 (3.6e-04), tiny
//           3.0e-04 (3.4e-04), outliers 2.7e-04 (3.3e-04), wide 3.1e-04 (3.7e-04).

#include "launch.h"

#include "../../forms/rms_norm_linear_residual/sliced_k_fp16.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __half;
  static constexpr int K = 4096, N = 6144;
};
struct UpTo8M : Shape {  // 128 blocks of 8 warps, 216 KiB
  static constexpr int kTokens = 8, kRows = 48, kWarps = 8, kChunks = 2, kStages = 3;
};
struct AnyM : Shape {  // each 16 tokens: 128 blocks of 8 warps, 176 KiB
  static constexpr int kTokens = 16, kRows = 48, kWarps = 8, kChunks = 2, kStages = 2;
};

}  // namespace

cudaError_t rms_norm_linear_residual_K4096_N6144_fp16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[2] != Shape::K) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  return launch<AnyM>(args, stream);
}

}  // namespace mirage::generated
