// Rows that come in parts, each part with a weight and a result of its own: products of one x by
// several weights in one launch, as queries, keys and values are. A block has rows of one part.
#pragma once

#include "tile/grid.cuh"

namespace mirage::tile {

// Which rows a block has: of part `index`, which has `rows` of them, tile `tile`.
template <int... kLengths>
struct RowParts {
  static constexpr int kCount = sizeof...(kLengths);
  int index, tile, rows;

  // Whether tiles of so many rows leave no rest in any part.
  static constexpr bool even(int rows) { return ((kLengths % rows == 0) && ...); }

  // Of the tile `tile` of all.
  __device__ static RowParts of(int tile, int rows) {
    constexpr int lengths[] = {kLengths...};
    RowParts found{0, tile, lengths[0]};
#pragma unroll
    for (int i = 1; i < kCount; ++i) {
      const int before = static_cast<int>(ceil_div(lengths[i - 1], rows));
      if (found.index == i - 1 && found.tile >= before)
        found = {i, found.tile - before, lengths[i]};
    }
    return found;
  }
};

template <int... kLengths>
constexpr int64_t tiles_of(RowParts<kLengths...>, int size) {
  return (ceil_div(kLengths, size) + ...);
}

}  // namespace mirage::tile
