// mirage-kernels generate rms_norm --arch sm_90a --dtype fp16 --shape K=4096
//
// Formula   [M, K] = rms_norm(x) * (norm_weight + weight_offset)
// Shape     Llama-3-8B, Qwen3-8B (weight_offset is 0)
// Proved    equal to the recipe on 4 random draws over finite fields, for the tiles of its one
//           variant, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.3.
// Accuracy  emulated error against float64 (unfused program's): unit 2.1e-04 (2.1e-04), tiny
//           2.1e-04 (2.1e-04), outliers 2.0e-04 (2.0e-04), wide 2.1e-04 (2.1e-04).

#include "launch.h"

#include "../../forms/rms_norm/row_wise.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __half;
  static constexpr int K = 4096;
};
struct AnyM : Shape {  // a block of 4 warps per token
  static constexpr int kWarps = 4;
};

}  // namespace

cudaError_t rms_norm_K4096_fp16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  return launch<AnyM>(args, stream);
}

}  // namespace mirage::generated
