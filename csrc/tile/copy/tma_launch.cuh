// Host side of a kernel whose tensors come as TMA tiles: its arguments, grid and launch.
#pragma once

#include "tile/copy/tma.cuh"
#include "tile/grid.cuh"

namespace mirage::tile {

template <int kMaps>
struct TmaArgs {
  LaunchArgs call;
  CUtensorMap maps[kMaps];
};

// A tensor, and the lines of its TMA tiles.
struct TiledTensor {
  Tensor tensor;
  int lines;
};

// The tiles of a result of `rows` and `tokens`; so many blocks share rows.
template <class Block>
Grid tma_grid(int64_t tokens, int64_t rows, int blocks, int cluster = 1) {
  const int64_t row_tiles = ceil_div(rows, Block::kRows) * blocks;
  return {row_tiles, ceil_div(tokens, Block::kTokens), Block::kThreads, Block::kBytes, cluster};
}

template <class T, int kMaps>
cudaError_t launch_tma(void (*kernel)(TmaArgs<kMaps>), Grid grid, const LaunchArgs& args,
                       const TiledTensor (&tensors)[kMaps], cudaStream_t stream) {
  TmaArgs<kMaps> given{args};
  for (int i = 0; i < kMaps; ++i) {
    const cudaError_t status = encode<T>(&given.maps[i], tensors[i].tensor, tensors[i].lines);
    if (status != cudaSuccess) return status;
  }
  return launch(kernel, grid, given, stream);
}

}  // namespace mirage::tile
