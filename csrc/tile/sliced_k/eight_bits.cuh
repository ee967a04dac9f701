// Weights of 8 bits: a lane holds 16 elements of a line where it has 8 of others, and converts
// them.
#pragma once

#include "tile/math/eight_bits.cuh"
#include "tile/math/elementwise.cuh"
#include "tile/row_groups.cuh"
#include "tile/sliced_k/pipeline.cuh"

namespace mirage::tile {

struct alignas(kVec16Bytes) FourWords {
  uint32_t words[4];
};
template <>
struct Vec16<int8_t> : FourWords {};
template <>
struct Vec16<uint8_t> : FourWords {};
template <>
struct Vec16<__nv_fp8_e4m3> : FourWords {};
template <>
struct Vec16<__nv_fp8_e5m2> : FourWords {};

// [N, K]: lane 4 g + t holds elements 64 c + 16 t + 0..15 of lines 8 i + g.
template <class Byte, int kRows, int kDepth>
using ByteRowFrag = Fragment<Dims::kRowsDepth, Byte, kRows / kLineTile, kDepth / (2 * kChunkDepth)>;

// The same numbers as tensor cores take them: chunks 2 c and 2 c + 1 are halves of what a lane has.
template <class T, class Byte, int kLines, int kChunks>
__device__ Fragment<Dims::kRowsDepth, T, kLines, 2 * kChunks> converted(
    const Fragment<Dims::kRowsDepth, Byte, kLines, kChunks>& rows) {
  Fragment<Dims::kRowsDepth, T, kLines, 2 * kChunks> made;
  unrolled<kLines, 2 * kChunks, kLaneDepth / 2>([&](int i, int c, int p) {
    const uint32_t word = rows.at[i][c / 2].words[2 * (c % 2) + p / 2];
    made.at[i][c].pairs[p] = from_floats<T>(pair_of<Byte>(word, p % 2));
  });
  return made;
}

// What groups have for a step of such rows at k. A lane's elements of a chunk are of one group.
template <int kStepDepth, class Groups>
__device__ RowFrag<typename Groups::Element, Groups::kRows, kStepDepth> step_groups(
    const Groups& groups, int k) {
  constexpr int kBytesDepth = 2 * kChunkDepth, kLaneBytes = 2 * kLaneDepth;
  static_assert(Groups::kGroup % kLaneBytes == 0);
  constexpr bool kEven = Groups::kDepth % kStepDepth == 0;
  constexpr bool kOne = Groups::kGroup % kStepDepth == 0;
  return filled<RowFrag<typename Groups::Element, Groups::kRows, kStepDepth>>([&](int i, int c) {
    const int own = kOne ? 0 : c / 2 * kBytesDepth + lane_quarter() * kLaneBytes;
    return group_vector<kEven>(groups, i * kLineTile + lane_line(), k + own);
  });
}

}  // namespace mirage::tile
