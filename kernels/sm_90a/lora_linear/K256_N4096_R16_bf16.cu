// mirage-kernels generate lora_linear --arch sm_90a --dtype bf16 --shape K=256,N=4096,R=16
//
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)
// Shape     the Mirage paper's LoRA
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.9.
// Accuracy  emulated error against float64 (unfused program's): unit 2.6e-03 (2.8e-03), tiny
//           2.6e-03 (2.8e-03), outliers 2.5e-03 (2.8e-03), wide 2.6e-03 (2.9e-03).

#include "launch.h"

#include "../../forms/lora_linear/sliced_k_K256.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int K = 256, N = 4096, R = 16;
};
struct UpTo8M : Shape {  // 128 blocks of 8 warps, 114 KiB
  static constexpr int kTokens = 8, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
};
struct UpTo16M : Shape {  // 128 blocks of 8 warps, 130 KiB
  static constexpr int kTokens = 16, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
};
struct UpTo32M : Shape {  // 128 blocks of 8 warps, 162 KiB
  static constexpr int kTokens = 32, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
};
struct AnyM : Shape {  // each 64 tokens: 256 blocks of 4 warps, 97 KiB
  static constexpr int kTokens = 64, kRows = 16, kWarps = 4, kChunks = 2, kStages = 2;
};

}  // namespace

cudaError_t lora_linear_K256_N4096_R16_bf16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[1] != Shape::K) return cudaErrorInvalidValue;
  if (args.row_strides[2] != Shape::K) return cudaErrorInvalidValue;
  if (args.row_strides[3] != Shape::R) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch<UpTo32M>(args, stream);
  return launch<AnyM>(args, stream);
}

}  // namespace mirage::generated
