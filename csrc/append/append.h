// What the kernel in front of gqa and its binding agree on; free of torch on purpose.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace mirage {

// A weight or bias of a norm over D: of head h at + h * head. Null: zeros.
struct PerHead {
  const void* at;
  int64_t head;
};

// A number for each token, int64 where `wide` and int32 otherwise.
struct PerToken {
  const void* at;
  int64_t step;
  bool wide;
};

// A cache to write, in elements: token i of page p lies, for head h, at p * page + i * token +
// h * head.
struct WrittenCache {
  void* at;
  int64_t page, token, head;
};

enum class HeadNorm { kNone, kRms, kLayer };

// One call. All lines [D] begin at multiples of 16 bytes.
struct AppendArgs {
  const void* qkv;    // [tokens, (Hq + 2 Hkv) * D]: heads of q, then k, then v
  int64_t qkv_token;  // elements from one token to the next
  PerHead q_weight, k_weight, q_bias, k_bias;
  const void* angles;  // [positions, rotated]: cosines, then sines
  int64_t angles_row, positions_end;
  bool float_angles;  // fp32; otherwise the type of qkv
  bool interleaved;   // rotates elements 2 i and 2 i + 1; otherwise i and rotated / 2 + i
  HeadNorm norm;      // of queries and keys
  // Whether weights and biases may be read while the kernel before in the stream still runs.
  bool constant_weights;
  // Whether positions, slots and angles may be, and what the kernel after reads of earlier tokens.
  bool constant_history;
  PerToken positions;  // outside [0, positions_end): what would be rotated becomes NaN
  PerToken slots;      // page * page_size + offset; outside [0, slots_end): nothing is written
  WrittenCache k, v;
  int32_t page_size, slots_end;
  void* q;  // [tokens, Hq, D], contiguous
  int32_t tokens, Hq, Hkv;
  int32_t rotated;  // of D, a multiple of 16; of 8 where interleaved
  float eps, weight_offset;
};

using AppendFn = cudaError_t (*)(const AppendArgs&, cudaStream_t);

// The kernel for "fp16" or "bf16" and heads of size D; null where there is none.
AppendFn find_append_kernel(const char* dtype, int64_t D);

}  // namespace mirage
