// What a shared object of kernels tells the library that loads it: its rows of the dispatch table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "launch.h"

namespace mirage {

// FNV-1a over numbers.
constexpr uint64_t digest_of(std::initializer_list<uint64_t> numbers) {
  uint64_t digest = 0xcbf29ce484222325;
  for (uint64_t number : numbers) digest = (digest ^ number) * 0x100000001b3;
  return digest;
}

// Raise it where a field of a launch gets another meaning in the same place.
constexpr uint64_t kLaunchVersion = 1;

// Where all fields lie that a library and its kernels both know. A kernel is refused by a library
// that has another number.
#define AT(field) offsetof(Args, field)
constexpr uint64_t launch_args_layout() {
  using Args = LaunchArgs;
  return digest_of({sizeof(Args), AT(inputs), AT(outputs), AT(row_strides), AT(dims), AT(scalars),
                    AT(constant_weights), AT(workspace), AT(nonce), AT(slice_ids), AT(wide_ids),
                    AT(slices)});
}

constexpr uint64_t attention_args_layout() {
  using Args = AttentionArgs;
  return digest_of({sizeof(Args),
                    AT(q),
                    AT(more_q),
                    AT(k),
                    AT(v),
                    AT(block_table),
                    AT(table_row),
                    AT(page_size),
                    AT(pages),
                    AT(seq_lens),
                    AT(first_tokens),
                    AT(vectors),
                    AT(vector_heads),
                    AT(scalars),
                    AT(integers),
                    AT(sinks),
                    AT(out),
                    AT(out_token),
                    AT(out_head),
                    AT(lse),
                    AT(B),
                    AT(Hkv),
                    AT(G),
                    AT(q_len),
                    AT(max_len),
                    AT(first_window),
                    AT(multiprocessors),
                    AT(workspace),
                    AT(nonce),
                    AT(constant_weights),
                    AT(constant_history),
                    AT(group),
                    AT(page),
                    AT(clusters),
                    AT(sequence_work_tiles),
                    AT(boxed),
                    AT(k_boxes),
                    AT(v_boxes)});
}

constexpr uint64_t rows_layout() {
  constexpr uint64_t kernel = [] {
    using Args = Kernel;
    return digest_of({sizeof(Args), AT(recipe), AT(dtype), AT(dims), AT(dim_count), AT(launch),
                      AT(name), AT(max_tokens), AT(options), AT(workspace)});
  }();
  constexpr uint64_t attention = [] {
    using Args = AttentionKernel;
    return digest_of({sizeof(Args), AT(recipe), AT(dtype), AT(dims), AT(dim_count), AT(launch),
                      AT(workspace), AT(name), AT(options)});
  }();
  return digest_of({kernel, attention});
}
#undef AT

constexpr uint64_t kLaunchAbi =
    digest_of({kLaunchVersion, launch_args_layout(), attention_args_layout(), rows_layout()});

// The first two fields stay as they are: a library reads no others of an object with another abi.
struct KernelRows {
  uint64_t abi;
  const char* arch;
  const Kernel* kernels;
  int64_t kernel_count;
  const AttentionKernel* attention_kernels;
  int64_t attention_kernel_count;
};

}  // namespace mirage

// Behind the dispatch table of a shared object: exports it.
#define MIRAGE_EXPORT_ROWS                                       \
  extern "C" {                                                   \
  extern const mirage::KernelRows mirage_kernel_rows;            \
  const mirage::KernelRows mirage_kernel_rows{                   \
      mirage::kLaunchAbi,        mirage::kArch,                  \
      mirage::kKernels,          mirage::kKernelCount,           \
      mirage::kAttentionKernels, mirage::kAttentionKernelCount}; \
  }
