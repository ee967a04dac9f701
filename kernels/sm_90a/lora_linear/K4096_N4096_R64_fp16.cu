// mirage-kernels generate lora_linear --arch sm_90a --dtype fp16 --shape K=4096,N=4096,R=64
//
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b)
// Shape     Llama-3-8B q_proj and o_proj, TP 1; Qwen3-8B q_proj
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.9.
// Accuracy  emulated error against float64 (unfused program's): unit 3.3e-04 (3.6e-04), tiny
//           3.3e-04 (3.6e-04), outliers 3.1e-04 (3.5e-04), wide 3.3e-04 (3.7e-04).

#include "launch.h"

#include "../../forms/lora_linear/paired_producers.cuh"
#include "../../forms/lora_linear/producers.cuh"
#include "../../forms/lora_linear/register_operand.cuh"
#include "../../forms/lora_linear/sliced_k_K4096.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __half;
  static constexpr int K = 4096, N = 4096, R = 64;
};
struct UpTo8M : Shape {  // 4 producer blocks and 128 blocks of 8 warps, 217 KiB
  static constexpr int kTokens = 8, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
  static constexpr int kProducerRows = 16, kProducerTokens = 8;
  static constexpr int kProducerWarps = 8, kProducerStages = 9;
};
struct UpTo16M : Shape {  // 4 producer blocks and 128 blocks of 8 warps, 225 KiB
  static constexpr int kTokens = 16, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
  static constexpr int kProducerRows = 16, kProducerTokens = 16;
  static constexpr int kProducerWarps = 8, kProducerStages = 7;
};
struct UpTo32M : Shape {  // 4 producer blocks and 64 clusters of 2 blocks, 201 KiB
  static constexpr int kTokens = 32, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2;
  static constexpr int kProducerRows = 16, kProducerTokens = 32;
  static constexpr int kProducerGroups = 2, kProducerStages = 12;
};
struct AnyM : Shape {  // each 64 tokens: 4 producer blocks and 64 clusters of 2 blocks, 209 KiB
  static constexpr int kTokens = 64, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2,
                       kBarriers = 2;
  static constexpr int kProducerRows = 32, kProducerTokens = 32;
  static constexpr int kProducerGroups = 2, kProducerStages = 8;
};

}  // namespace

cudaError_t lora_linear_K4096_N4096_R64_fp16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[1] != Shape::K) return cudaErrorInvalidValue;
  if (args.row_strides[2] != Shape::K) return cudaErrorInvalidValue;
  if (args.row_strides[3] != Shape::R) return cudaErrorInvalidValue;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch_register_operand<UpTo32M>(args, stream);
  return launch_register_operand<AnyM>(args, stream);
}

int64_t lora_linear_K4096_N4096_R64_fp16_workspace(const LaunchArgs& args) {
  const int64_t M = args.dims[0];
  if (M <= 8) return workspace<UpTo8M>(args);
  if (M <= 16) return workspace<UpTo16M>(args);
  if (M <= 32) return workspace<UpTo32M>(args);
  return workspace<AnyM>(args);
}

}  // namespace mirage::generated
