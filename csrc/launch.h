// What an emitted kernel and the library's bindings agree on; free of torch on purpose.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

namespace mirage {

// One call of an emitted kernel. Tensors, dynamic dims and scalars each in recipe order.
struct LaunchArgs {
  const void* inputs[12];   // device pointers; null where an optional input is absent: zeros
  void* outputs[4];         // device pointers, contiguous
  int64_t row_strides[12];  // elements between consecutive rows of inputs[i]; last dim contiguous
  int64_t dims[4];          // run-time values of the dynamic dims
  float scalars[4];
  // Whether the kernel may read its weights (inputs without a dynamic dim) while the kernel before
  // it in the stream still runs: true where that one is known not to write them.
  bool constant_weights;
  void* workspace;  // as many bytes as the kernel's LaunchSpaceFn says
  uint64_t nonce;   // another one in every call that has a workspace
  // Where inputs are stacks of so many slices: which of them each token has; any other number:
  // none.
  const void* slice_ids;  // int64_t[dims[0]] or int32_t
  bool wide_ids;
  int64_t slices;
};

using LaunchFn = cudaError_t (*)(const LaunchArgs&, cudaStream_t);
using LaunchSpaceFn = int64_t (*)(const LaunchArgs&);  // bytes; reads dims only

struct StaticDim {
  const char* name;
  int64_t size;
};

// One row of the dispatch table.
struct Kernel {
  const char* recipe;
  const char* dtype;  // "fp16" or "bf16"
  StaticDim dims[4];
  int dim_count;
  LaunchFn launch;
  const char* name;
  int64_t max_tokens;   // above it PyTorch's own program is faster and runs instead; 0: never
  const char* options;  // inputs of the recipe that a call may leave out, by name: "bias residual"
  LaunchSpaceFn workspace = nullptr;  // null: it needs none
};

// Where the lines [.., D] of a tensor lie, in elements from one token and one head to the next; D
// is contiguous.
struct Lines {
  const void* at;
  int64_t token, head;
};

// The same of a cache: token i of page p lies, for head h, at p * page + i * token + h * head.
struct Cache {
  const void* at;
  int64_t page, token, head;
};

// A number to divide by, and what spares the device the division: tile/attention/scheduler.cuh.
struct HostDivisor {
  uint32_t value, multiplier, shift;
};

// One call of an emitted attention kernel. G query heads share one of the Hkv heads of the cache:
// query head = kv head * G + g. "Keys" counts the tokens of a sequence in the cache.
struct AttentionArgs {
  Lines q;       // [tokens, Hkv * G, D]
  Lines more_q;  // of latent attention: what else queries have, to go with v
  Cache k, v;    // of latent attention: what are keys and values; what else the keys have
  const int32_t* block_table;   // [B, ..] page numbers; null: sequence b is page b, of any length
  int64_t table_row;            // elements between the rows of block_table
  int32_t page_size;            // tokens per page
  uint32_t pages;               // of a cache
  const int32_t* seq_lens;      // [B] keys of each sequence; null: all have max_len
  const int32_t* first_tokens;  // [B + 1] (cu_seqlens_q); null: every sequence has q_len tokens
  // Inputs of dims [D], by head or for all alike, in recipe order; null where absent: zeros.
  const void* vectors[4];
  int64_t vector_heads[4];      // elements from one head's line to the next; 0: all share one
  float scalars[8];             // fp32 inputs in recipe order
  int32_t integers[2];          // int32 inputs in recipe order
  const void* sinks;            // [Hkv * G] in the storage type; null: none
  void* out;                    // [tokens, Hkv * G, D], D contiguous
  int64_t out_token, out_head;  // elements from one token and one head of out to the next
  float* lse;                   // [tokens, Hkv * G], contiguous, natural log; null: not wanted
  int32_t B, Hkv, G;
  int32_t q_len;    // most query tokens of a sequence
  int32_t max_len;  // most keys of a sequence
  // How far back a query token may look; units that are further from every token are skipped. It
  // only saves work: the mask of the muGraph decides. -1: no limit.
  int32_t first_window;
  int32_t multiprocessors;
  void* workspace;        // as many bytes as the kernel's WorkspaceFn says
  uint64_t nonce;         // another one in every call
  bool constant_weights;  // see LaunchArgs
  // Whether pages, lengths and all keys and values but each sequence's newest q_len ones may be
  // read while the kernel before still runs: true where that one is known not to write them.
  bool constant_history;
  // Filled in by the launch: heads of a group; tokens of a page; groups of blocks that work on the
  // same keys; segments of a sequence, if it has as many tokens as any.
  HostDivisor group, page, clusters, sequence_work_tiles;
  // Also by the launch: whether k and v have maps, by units of keys, and these.
  bool boxed;
  CUtensorMap k_boxes, v_boxes;
};

using AttentionFn = cudaError_t (*)(const AttentionArgs&, cudaStream_t);
using WorkspaceFn = int64_t (*)(const AttentionArgs&);  // bytes; reads sizes only

// One row of the dispatch table of attention.
struct AttentionKernel {
  const char* recipe;
  const char* dtype;  // "fp16" or "bf16"
  StaticDim dims[4];
  int dim_count;
  AttentionFn launch;
  WorkspaceFn workspace;
  const char* name;
  const char* options;  // as in Kernel
};

// Defined in the emitted table.cpp of the one architecture that a library is built for.
extern const Kernel kKernels[];
extern const int kKernelCount;
extern const AttentionKernel kAttentionKernels[];
extern const int kAttentionKernelCount;
extern const char* const kArch;

}  // namespace mirage
