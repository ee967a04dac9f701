// What general kernels of the catalog and the library's bindings agree on; free of torch on
// purpose.
#pragma once

#include <cstdint>

namespace mirage {

// A launch of a general kernel of the catalog, which takes any strides: the pointers of its
// tensors, their strides one after the other, dynamic dims and scalars, all in the order of its
// signature (generator/tiles/launch.py). Returns a cudaError_t.
using GeneralFn = int (*)(void* const* tensors, const int64_t* strides, const int64_t* dims,
                          const double* scalars, char* workspace, void* stream);

// One row of the dispatch table of general kernels, which serve any shape.
struct GeneralKernel {
  const char* recipe;
  const char* dtype;  // "fp16" or "bf16"
  GeneralFn launch;
  const char* name;
};

// Defined in the emitted table.cpp.
extern const GeneralKernel kGeneralKernels[];
extern const int kGeneralKernelCount;

}  // namespace mirage
