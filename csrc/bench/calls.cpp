// Entry points for callers without bindings: the kernels of a table by number.
#include "launch.h"

#define MIRAGE_PUBLIC extern "C" __attribute__((visibility("default")))

MIRAGE_PUBLIC int mirage_kernel_count() { return mirage::kKernelCount; }

MIRAGE_PUBLIC const char* mirage_kernel_name(int index) { return mirage::kKernels[index].name; }

MIRAGE_PUBLIC int mirage_launch_bytes() { return static_cast<int>(sizeof(mirage::LaunchArgs)); }

// Returns a cudaError_t.
MIRAGE_PUBLIC int mirage_launch(int index, const mirage::LaunchArgs* args, cudaStream_t stream) {
  return mirage::kKernels[index].launch(*args, stream);
}
