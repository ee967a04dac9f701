// After a part of many query rows: what blocks leave to others, and what becomes of the whole.
//
// Without crews it is as in attention_meet.cuh: the block that has a segment's first unit finishes
// it, the others leave what they have in the workspace. Here four elements of a row go together.
#pragma once

#include "tile/attention_meet.cuh"
#include "tile/attention_wide_products.cuh"

namespace mirage::tile {

// What a block leaves: its nonce; per row its peak and sum; the product [rows, D].
template <int kRows, int kDepth>
struct WideSpace {
  static constexpr int64_t kRowFloats = kDepth + 4;  // the last four: peak, sum
  static constexpr int64_t kBlockBytes = sizeof(float4) + kRows * kRowFloats * sizeof(float);
  char* at;
  int blocks;

  __device__ uint64_t* nonce(int block) const {
    return reinterpret_cast<uint64_t*>(at + block * sizeof(float4));
  }
  __device__ float* row(int block, int row) const {
    float* const first = reinterpret_cast<float*>(at + blocks * sizeof(float4));
    return first + (static_cast<int64_t>(block) * kRows + row) * kRowFloats;
  }
  __device__ float4* sums(int block, int row_) const {
    return reinterpret_cast<float4*>(row(block, row_) + kDepth);
  }
  __device__ float4* values(int block, RowElement e) const {
    return reinterpret_cast<float4*>(row(block, e.row) + e.d);
  }
};

// A row's peak and sum, and four elements of its product, of some keys.
struct WideTotal {
  float peak = RowPeaks<8>::kLowest, sum = 0.0f;
  float values[4] = {};

  // Relative to a peak that is not lower.
  __device__ void lower_to(float higher) {
    const float factor = fast_exp(peak - higher);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] *= factor;
    sum *= factor;
    peak = higher;
  }

  // Adds what others have, relative to this peak.
  __device__ void add(float2 row, float4 theirs, float factor) {
    sum += row.y * factor;
    values[0] += theirs.x * factor;
    values[1] += theirs.y * factor;
    values[2] += theirs.z * factor;
    values[3] += theirs.w * factor;
  }
};

// Adds what the blocks first to last left of four elements, kBlocks of them read at once.
template <int kBlocks, class Space>
__device__ void add_left(WideTotal& total, Space space, int first, int last, RowElement e) {
#pragma unroll 1
  for (; first <= last; first += kBlocks) {
    float2 rows[kBlocks];
    float4 theirs[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int block = min(first + i, last);
      rows[i] = __ldcg(reinterpret_cast<const float2*>(space.sums(block, e.row)));
      theirs[i] = __ldcg(space.values(block, e));
    }
    float peak = total.peak;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) peak = fmaxf(peak, rows[i].x);
    total.lower_to(peak);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const float factor = first + i <= last ? fast_exp(rows[i].x - peak) : 0.0f;
      total.add(rows[i], theirs[i], factor);
    }
  }
}

// Rows in shared memory: of some parts, `rows` each; product, then peak and sum.
template <int kDepth>
struct LeftRows {
  static constexpr int kPitch = kDepth + 8;  // floats; lines of eight rows use all banks
  float* at;
  int rows;

  __device__ float* row(int part, int row) const { return at + (part * rows + row) * kPitch; }

  // Four elements of all parts.
  __device__ WideTotal total(int parts, RowElement e) const {
    WideTotal total;
#pragma unroll 4
    for (int i = 0; i < parts; ++i) total.peak = fmaxf(total.peak, row(i, e.row)[kDepth]);
#pragma unroll 4
    for (int i = 0; i < parts; ++i) {
      const float* const from = row(i, e.row);
      const float2 peak_sum = *reinterpret_cast<const float2*>(from + kDepth);
      total.add(peak_sum, *reinterpret_cast<const float4*>(from + e.d),
                fast_exp(peak_sum.x - total.peak));
    }
    return total;
  }
};

// The rows of a segment as what comes after the combination sees them.
template <class T, int kRows>
class WideResults {
 public:
  __device__ WideResults(const AttentionArgs& args, const Segment& segment)
      : args_(args), segment_(segment) {}

  __device__ void store(RowElement e, float value) const { at_[e.d % 4] = cast<T>(value); }

  // After::of(rows, element, sum, product) for four elements of a row, whose sum takes its sink
  // first and leaves its log.
  template <class After>
  __device__ void take(RowElement e, WideTotal& total) {
    const QueryPlace place = segment_.template place<kRows>(args_, e.row);
    if (args_.sinks != nullptr) {
      const float sink = static_cast<float>(static_cast<const T*>(args_.sinks)[place.head]);
      total.lower_to(fmaxf(total.peak, sink));
      total.sum += fast_exp(sink - total.peak);
    }
    if (e.d == 0 && args_.lse != nullptr) {
      args_.lse[place.token * args_.Hkv * args_.G + place.head] =
          total.sum > 0.0f ? total.peak + logf(total.sum) : -INFINITY;
    }
    const Divisor sum{total.sum > 0.0f ? __frcp_rn(total.sum) : 1.0f};  // of nothing: 0 comes out
    at_ = static_cast<T*>(args_.out) + place.token * args_.out_token + place.head * args_.out_head +
          e.d;
#pragma unroll
    for (int i = 0; i < 4; ++i) After::of(*this, {e.row, e.d + i}, sum, total.values[i]);
  }

 private:
  const AttentionArgs& args_;
  const Segment& segment_;
  T* at_ = nullptr;
};

}  // namespace mirage::tile
