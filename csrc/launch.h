// What an emitted kernel and the library's bindings agree on; free of torch on purpose.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace mirage {

// One call of an emitted kernel. Tensors, dynamic dims and scalars each in recipe order.
struct LaunchArgs {
  const void* inputs[8];   // device pointers; null where an optional input is absent: zeros
  void* outputs[4];        // device pointers, contiguous
  int64_t row_strides[8];  // elements between consecutive rows of inputs[i]; last dim contiguous
  int64_t dims[4];         // run-time values of the dynamic dims
  float scalars[4];
  // Whether the kernel may read its weights (inputs without a dynamic dim) while the kernel before
  // it in the stream still runs: true where that one is known not to write them.
  bool constant_weights;
};

using LaunchFn = cudaError_t (*)(const LaunchArgs&, cudaStream_t);

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
};

// Defined in the emitted table.cpp of the one architecture that a library is built for.
extern const Kernel kKernels[];
extern const int kKernelCount;
extern const char* const kArch;

}  // namespace mirage
