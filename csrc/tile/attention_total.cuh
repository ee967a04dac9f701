// Sums of some keys, by quads of elements, and how those of different keys are added.
#pragma once

#include "tile/attention_parts.cuh"
#include "tile/attention_sums.cuh"

namespace mirage::tile {

struct RowElement {
  int row, d;
};

// A product's elements by fours, as lanes have them: of rows 2 p and 2 p + 1, elements d and d + 8.
// Quads of rows that a part does not have are not counted, but for less than half of all.
template <int kRows, int kDepth>
struct Quads {
  static constexpr int kOfTwoRows = kDepth / 2;
  static constexpr int kMost = kRows / 2 * kOfTwoRows;
  int shift;  // 2^shift pairs of rows

  __device__ explicit Quads(int rows) : shift((rows > 2) + (rows > 4) + (rows > 8)) {}
  __device__ int count() const { return kOfTwoRows << shift; }

  // Of the first row.
  __device__ RowElement element(int quad) const {
    const int line = quad >> shift;
    return {2 * pair(quad), line / kLineTile * kRowTile + line % kLineTile};
  }
  __device__ int pair(int quad) const { return quad & ((1 << shift) - 1); }

  // Where a warp leaves it: tile by tile of its product, lane by lane.
  __device__ int place(int quad) const {
    const int line = quad >> shift, p = pair(quad);
    const int tile = line / kLineTile * (kRows / kTokenTile) + p / 4;
    return tile * kWarpLanes + line % kLineTile * 4 + p % 4;
  }
};

// A quad of a product, and the peaks and sums of its two rows.
struct Total {
  float of[4] = {};  // [2 * i + j] = row j, element d + 8 i
  float peak[2] = {RowPeaks<kTokenTile>::kLowest, RowPeaks<kTokenTile>::kLowest}, sum[2] = {};

  Total() = default;
  __device__ Total(float4 values, float4 rows)
      : of{values.x, values.y, values.z, values.w}, peak{rows.x, rows.z}, sum{rows.y, rows.w} {}

  __device__ float4 values() const { return make_float4(of[0], of[1], of[2], of[3]); }
  __device__ float4 rows() const { return make_float4(peak[0], sum[0], peak[1], sum[1]); }

  // Relative to peaks that are not lower.
  __device__ void lower_to(int j, float higher) {
    const float factor = fast_exp(peak[j] - higher);
    of[j] *= factor;
    of[2 + j] *= factor;
    sum[j] *= factor;
    peak[j] = higher;
  }
};

// Adds what is there of first to last, kAtOnce of them read at once; kWhole: a multiple of that.
// Each has values() of a quad, and rows(): peak and sum of the one, peak and sum of the other.
template <int kAtOnce, bool kWhole, class Left>
__device__ void add_left(Total& total, const Left& left, int first, int last) {
#pragma unroll 1
  for (; first <= last; first += kAtOnce) {
    float4 rows[kAtOnce], values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int from = kWhole ? first + i : min(first + i, last);
      rows[i] = left.rows(from);
      values[i] = left.values(from);
    }
    float peak[2] = {total.peak[0], total.peak[1]};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      peak[0] = fmaxf(peak[0], rows[i].x);
      peak[1] = fmaxf(peak[1], rows[i].z);
    }
    total.lower_to(0, peak[0]);
    total.lower_to(1, peak[1]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool there = kWhole || first + i <= last;
      const float low = there ? fast_exp(rows[i].x - peak[0]) : 0.0f;
      const float high = there ? fast_exp(rows[i].z - peak[1]) : 0.0f;
      total.sum[0] += rows[i].y * low;
      total.sum[1] += rows[i].w * high;
      total.of[0] += values[i].x * low;
      total.of[1] += values[i].y * high;
      total.of[2] += values[i].z * low;
      total.of[3] += values[i].w * high;
    }
  }
}

// Adds what `lanes` neighbours have, a power of two of them: all have the same afterwards.
__device__ inline void add_over_lanes(Total& total, int lanes) {
  float peak[2] = {total.peak[0], total.peak[1]};
#pragma unroll 1
  for (int mask = 1; mask < lanes; mask *= 2) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      peak[j] = fmaxf(peak[j], __shfl_xor_sync(~0u, peak[j], mask));
    }
  }
  total.lower_to(0, peak[0]);
  total.lower_to(1, peak[1]);
#pragma unroll 1
  for (int mask = 1; mask < lanes; mask *= 2) {
#pragma unroll
    for (float& value : total.of) value += __shfl_xor_sync(~0u, value, mask);
#pragma unroll
    for (float& sum : total.sum) sum += __shfl_xor_sync(~0u, sum, mask);
  }
}

}  // namespace mirage::tile
