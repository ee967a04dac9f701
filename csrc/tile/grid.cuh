// Host side of a launch: grid, cluster, shared memory, PDL.
#pragma once

#include "launch.h"
#include "tile/mma/fragments.cuh"
#include "tile/sync/dependent_launch.cuh"

namespace mirage::tile {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

struct Grid {
  int64_t row_tiles, token_tiles;
  int threads, shared_bytes;
  int cluster = 1;  // blocks of a cluster, along the row tiles
};

// Tiles of rows: of a number of them, or of parts (row_parts.cuh).
constexpr int64_t tiles_of(int64_t rows, int size) { return ceil_div(rows, size); }

// The tiles of a result of `rows` and `tokens`, each a block.
template <class Config, class Rows>
Grid tile_grid(int64_t tokens, Rows rows, int shared_bytes) {
  const int64_t row_tiles = tiles_of(rows, Config::kRows);
  return {row_tiles, ceil_div(tokens, Config::kTokens), kBlockThreads<Config>, shared_bytes};
}

constexpr int kSharedBytesByDefault = 48 * 1024;  // more needs an attribute, per device
constexpr int kAnswers = 64;                      // that a thread caches
constexpr int kPortableCluster = 8;               // larger ones need an attribute

// A launch's configuration.
template <class Args>
class Launch {
 public:
  Launch(void (*kernel)(Args), Grid grid, cudaStream_t stream) : kernel_(kernel), grid_(grid) {
    config_.gridDim =
        dim3(static_cast<unsigned>(grid.row_tiles), static_cast<unsigned>(grid.token_tiles));
    config_.blockDim = dim3(static_cast<unsigned>(grid.threads));
    config_.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
    config_.stream = stream;
    config_.attrs = attributes_;
    if (kHasDependentLaunch) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes_[config_.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (grid.cluster == 1) return;
    attributes_[config_.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes_[config_.numAttrs++].val.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
  }

  // Sets the kernel's attributes, per device.
  cudaError_t allow() const {
    if (grid_.shared_bytes > kSharedBytesByDefault) {
      const cudaError_t status = cudaFuncSetAttribute(
          kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, grid_.shared_bytes);
      if (status != cudaSuccess) return status;
    }
    if (grid_.cluster <= kPortableCluster) return cudaSuccess;
    return cudaFuncSetAttribute(kernel_, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }

  // Clusters that run at once; call allow() first. Each thread caches its last answers: asking
  // takes microseconds.
  cudaError_t resident(int& clusters) const {
    struct Answer {
      void (*kernel)(Args);
      int device, cluster, shared_bytes, clusters;
    };
    static thread_local Answer answers[kAnswers];
    const size_t place =
        reinterpret_cast<size_t>(kernel_) / 16 + static_cast<size_t>(grid_.cluster);
    Answer& known = answers[place % kAnswers];
    int device = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status != cudaSuccess) return status;
    if (known.kernel != kernel_ || known.device != device || known.cluster != grid_.cluster ||
        known.shared_bytes != grid_.shared_bytes) {
      Answer asked{kernel_, device, grid_.cluster, grid_.shared_bytes, 0};
      status = cudaOccupancyMaxActiveClusters(&asked.clusters, kernel_, &config_);
      if (status != cudaSuccess) return status;
      known = asked;
    }
    clusters = known.clusters;
    return cudaSuccess;
  }

  cudaError_t start(const Args& args) const { return cudaLaunchKernelEx(&config_, kernel_, args); }

  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

 private:
  void (*kernel_)(Args);
  Grid grid_;
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

template <class Args>
cudaError_t launch(void (*kernel)(Args), Grid grid, const Args& args, cudaStream_t stream) {
  const Launch<Args> call(kernel, grid, stream);
  const cudaError_t status = call.allow();
  return status == cudaSuccess ? call.start(args) : status;
}

}  // namespace mirage::tile
