// Host side of a launch.
#pragma once

#include <cstdint>

#include "launch.h"
#include "tile/dependent.cuh"

namespace mirage::tile {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

struct Grid {
  int64_t row_tiles, token_tiles;
  int threads, shared_bytes;
};

constexpr int kSharedBytesByDefault = 48 * 1024;  // more has to be asked for, per device

template <class Args>
cudaError_t launch(void (*kernel)(Args), Grid grid, const Args& args, cudaStream_t stream) {
  if (grid.shared_bytes > kSharedBytesByDefault) {
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes);
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(grid.row_tiles), static_cast<unsigned>(grid.token_tiles));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = kHasDependentLaunch ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace mirage::tile
