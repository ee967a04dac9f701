// What an emitted kernel and the library's bindings agree on; free of torch on purpose.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace mirage {

// One call of an emitted kernel. Tensors, dynamic dims and scalars each in recipe order.
struct LaunchArgs {
  const void* inputs[8];   // device pointers
  void* outputs[4];        // device pointers, contiguous
  int64_t row_strides[8];  // elements between consecutive rows of inputs[i]; last dim contiguous
  int64_t dims[4];         // run-time values of the dynamic dims
  float scalars[4];
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
};

// Defined in the emitted table.cpp of the one architecture that a library is built for.
extern const Kernel kKernels[];
extern const int kKernelCount;
extern const char* const kArch;

}  // namespace mirage
