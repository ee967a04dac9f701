// The memory floor: bare kernels that do nothing but read.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace mirage::bench {

// Number of variants that read_floor knows; the floor is the fastest of them.
int read_floor_variants();

// Reads `bytes` (a multiple of 16) at `data` (16-byte aligned) once. `sink` is 4 writable bytes of
// device memory: the sums of what was read would go there if they ever matched an unlikely value.
cudaError_t read_floor(const void* data, int64_t bytes, int variant, void* sink,
                       cudaStream_t stream);

}  // namespace mirage::bench
