// Weights of 8 bits in cluster split-K: a TMA tile of them has lines of 64 bytes, which come as 32
// elements of 16 bits.
#pragma once

#include "tile/cluster_split_k/steps.cuh"
#include "tile/math/eight_bits.cuh"
#include "tile/row_groups.cuh"

namespace mirage::tile {

// The byte offset of 16-byte vector `vec` of a line in a tile with the 64-byte swizzle: halves of
// one vector of eight lines lie in different banks.
__device__ constexpr int swizzled_bytes_offset(int line, int vec) {
  return line * (kTmaRowBytes / 2) + (vec ^ line / 2 % 4) * kVec16Bytes;
}

// Of T, what ConsumerStep::rows() has.
template <class T, class Block>
using StepRows = RowFrag<T, Block::kTiles * kRowTile, kTmaDepth>;

// The rows of a step's weight i as ConsumerStep::rows() has them, converted: of every 16 k a lane
// reads the pairs 2t, 2t + 1 and 2t + 8, 2t + 9.
template <class T, class Block>
__device__ StepRows<T, Block> converted_rows(const ConsumerStep<Block>& step, int i) {
  using Byte = typename Block::RowElement;
  StepRows<T, Block> rows;
  const int own = step.block.own_row() + warp_index() % kGroupWarps * kRowTile + lane_line();
  const char* const first = step.block.buffer(step.stage, step.tma).rows(i) + lane_quarter() * 2;
  unrolled<Block::kTiles, 2, kMmas, 2>([&](int r, int high, int m, int p) {
    const int line = own + r * kGroupRows + high * kLineTile;
    const char* const from = first + swizzled_bytes_offset(line, m) + p * kLineTile;
    const uint32_t word = *reinterpret_cast<const uint16_t*>(from);
    rows.at[2 * r + high][m / 2].pairs[m % 2 * 2 + p] = from_floats<T>(pair_of<Byte>(word, 0));
  });
  return rows;
}

// What groups have for such rows.
template <class Block, class Groups>
__device__ StepRows<typename Groups::Element, Block> step_groups(const ConsumerStep<Block>& step,
                                                                 const Groups& groups) {
  static_assert(Groups::kGroup % kChunkDepth == 0);
  const int own = step.block.own_row() + warp_index() % kGroupWarps * kRowTile + lane_line();
  return filled<StepRows<typename Groups::Element, Block>>([&](int i, int c) {
    const int row = own + i / 2 * kGroupRows + i % 2 * kLineTile;
    const int k = step.k + (Groups::kGroup % kTmaDepth == 0 ? 0 : c * kChunkDepth);
    return group_vector<true>(groups, row < Groups::kRows ? row : 0, k);
  });
}

}  // namespace mirage::tile
