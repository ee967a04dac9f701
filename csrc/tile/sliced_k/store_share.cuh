// Results that all blocks of a tile of tokens compute alike: each stores its share.
#pragma once

#include "tile/copy/predicated.cuh"

namespace mirage::tile {

// out[first_line + line, k : k + kDepth] = value[line, :] for lines and k inside the tensor, whose
// lines are contiguous. All blocks along grid.x call this in every step; each stores every
// gridDim.x-th one.
template <bool kEvenDepth, class T, int kLines, int kChunks>
__device__ void store_share(T* out, Extent extent,
                            const Fragment<Dims::kTokensDepth, T, kLines, kChunks>& value, int k) {
  if (k / (kChunks * kChunkDepth) % gridDim.x != blockIdx.x) return;
  const int first_k = k + lane_quarter() * kLaneDepth;
  unrolled<kLines>([&](int i) {
    const int line = extent.first_line + i * kLineTile + lane_line();
    T* const at = out + static_cast<int64_t>(line) * extent.depth + first_k;
    unrolled<kChunks>([&](int c) {
      const bool inside = kEvenDepth || first_k + c * kChunkDepth < extent.depth;
      if (line < extent.lines && inside) {
        *reinterpret_cast<uint4*>(at + c * kChunkDepth) =
            reinterpret_cast<const uint4&>(value.at[i][c]);
      }
    });
  });
}

}  // namespace mirage::tile
