// mirage-kernels generate rms_norm --arch sm_90a --dtype bf16 --shape K=8192
//
// Formula   [M, K] = rms_norm(x) * (norm_weight + weight_offset)
// Shape     Llama-3-70B (weight_offset is 0)
// Proved    equal to the recipe on 4 random draws over finite fields, for the tiles of its one
//           variant, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.3.
// Accuracy  emulated error against float64 (unfused program's): unit 1.7e-03 (1.7e-03), tiny
//           1.6e-03 (1.6e-03), outliers 1.6e-03 (1.6e-03), wide 1.7e-03 (1.7e-03).

#include "launch.h"

#include "../../forms/rms_norm/row_wise.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int K = 8192;
};
struct AnyM : Shape {  // a block of 8 warps per token
  static constexpr int kWarps = 8;
};

}  // namespace

cudaError_t rms_norm_K8192_bf16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  return launch<AnyM>(args, stream);
}

}  // namespace mirage::generated
