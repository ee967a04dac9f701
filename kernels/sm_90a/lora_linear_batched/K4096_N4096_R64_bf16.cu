// mirage-kernels generate lora_linear_full --arch sm_90a --dtype bf16 --shape K=4096,N=4096,R=64
//
// Formula   [M, N] = linear(x, weight) + scale * linear(linear(x, lora_a), lora_b) + bias
// Shape     Llama-3-8B q_proj and o_proj, TP 1 (no bias)
// Proved    equal to the recipe on 16 random draws over finite fields, for the tiles of all 4
//           variants, at full extents and uneven edges; a wrong muGraph passes with probability at
//           most 2^-57.9.
// Accuracy  emulated error against float64 (unfused program's): unit 2.2e-03 (2.3e-03), tiny
//           7.9e-04 (7.9e-04), outliers 2.5e-03 (2.8e-03), wide 2.7e-03 (2.8e-03).
// Launch    first clusters of 8 blocks for the inner products of up to 8 tokens of a slice, 9 KiB
//           shared; then what stands at the knobs.

#include "launch.h"

#include "../../forms/lora_linear_batched/producers.cuh"
#include "../../forms/lora_linear_batched/register_operand.cuh"
#include "../../forms/lora_linear_batched/sliced_k.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int K = 4096, N = 4096, R = 64;
};
struct UpTo8M : Shape {  // 128 blocks of 8 warps, 120 KiB
  static constexpr int kTokens = 8, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
  static constexpr int kSlices = 8;
};
struct UpTo16M : Shape {  // 128 blocks of 8 warps, 138 KiB
  static constexpr int kTokens = 16, kRows = 32, kWarps = 8, kChunks = 2, kStages = 2;
  static constexpr int kSlices = 8;
};
struct UpTo32M : Shape {  // 64 clusters of 2 blocks, 159 KiB
  static constexpr int kTokens = 32, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2;
  static constexpr int kSlices = 8;
};
struct AnyM : Shape {  // each 64 tokens: 64 clusters of 2 blocks, 200 KiB
  static constexpr int kTokens = 64, kRows = 64, kStages = 4, kGroups = 2, kBlocks = 2;
  static constexpr int kSlices = 8;
};

}  // namespace

cudaError_t lora_linear_batched_K4096_N4096_R64_bf16(const LaunchArgs& args, cudaStream_t stream) {
  const int64_t M = args.dims[0];
  if (M == 0) return cudaSuccess;
  if (args.row_strides[1] != Shape::K) return cudaErrorInvalidValue;
  if (args.row_strides[2] != Shape::K) return cudaErrorInvalidValue;
  if (args.row_strides[3] != Shape::R) return cudaErrorInvalidValue;
  const cudaError_t status = launch_producers<Shape>(args, stream);
  if (status != cudaSuccess) return status;
  if (M <= 8) return launch<UpTo8M>(args, stream);
  if (M <= 16) return launch<UpTo16M>(args, stream);
  if (M <= 32) return launch_register_operand<UpTo32M>(args, stream);
  return launch_register_operand<AnyM>(args, stream);
}

int64_t lora_linear_batched_K4096_N4096_R64_bf16_workspace(const LaunchArgs& args) {
  const int64_t M = args.dims[0];
  if (M <= 8) return workspace<UpTo8M>(args);
  if (M <= 16) return workspace<UpTo16M>(args);
  if (M <= 32) return workspace<UpTo32M>(args);
  return workspace<AnyM>(args);
}

}  // namespace mirage::generated
