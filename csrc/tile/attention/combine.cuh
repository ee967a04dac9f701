// Sums of some keys, by pairs of elements: how those of different keys are added, and become rows
// of the result.
#pragma once

#include "tile/attention/flash_decode/products.cuh"
#include "tile/attention/scheduler.cuh"

namespace mirage::tile {

struct RowElement {
  int row, d;
};

// A product's elements by twos: of a row, d and d + 8, which a lane has beside those of another
// row. Neighbouring pairs are of different rows: of as many as a work item has, or the next power
// of two.
template <int kRows, int kDepth>
struct Pairs {
  static constexpr int kOfRow = kDepth / 2;
  static constexpr int kMost = kRows * kOfRow;
  int shift;  // 2^shift rows

  __device__ explicit Pairs(int rows) : shift((rows > 1) + (rows > 2) + (rows > 4) + (rows > 8)) {}
  __device__ int count() const { return kOfRow << shift; }

  __device__ int row(int pair) const { return pair & ((1 << shift) - 1); }
  // The first element.
  __device__ int depth(int pair) const {
    const unsigned line = pair >> shift;
    return line / kLineTile * kRowTile + line % kLineTile;
  }

  // Where a warp leaves it: tile by tile of its product, lane by lane, row by row.
  __device__ int place(int pair) const {
    const unsigned line = pair >> shift, r = row(pair);
    const int tile = line / kLineTile * (kRows / kTokenTile) + r / kTokenTile;
    return tile * kWarpLanes * 2 + line % kLineTile * kTokenTile + r % kTokenTile;
  }
};

// A pair of a product, and the maximum and the sum of its row.
struct Total {
  float of[2] = {};
  float maximum = RowMaxima<kTokenTile>::kLowest, sum = 0.0f;

  Total() = default;
  __device__ explicit Total(float4 all) : of{all.x, all.y}, maximum(all.z), sum(all.w) {}
  __device__ Total(float2 pair, float2 row) : of{pair.x, pair.y}, maximum(row.x), sum(row.y) {}

  __device__ float4 all() const { return make_float4(of[0], of[1], maximum, sum); }

  __device__ void scale(float factor) {
    of[0] *= factor;
    of[1] *= factor;
    sum *= factor;
  }
};

// Adds what is there of first to last, kAtOnce of them read at once; kWhole: a multiple of that.
template <int kAtOnce, bool kWhole, class Left>
__device__ void add_left(Total& total, const Left& left, int first, int last) {
#pragma unroll 1
  for (; first <= last; first += kAtOnce) {
    Total items[kAtOnce];
    float maximum = total.maximum;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) items[i] = left.of(kWhole ? first + i : min(first + i, last));
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) maximum = fmaxf(maximum, items[i].maximum);
    total.scale(fast_exp(total.maximum - maximum));
    total.maximum = maximum;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool there = kWhole || first + i <= last;
      const float factor = there ? fast_exp(items[i].maximum - maximum) : 0.0f;
      total.sum += items[i].sum * factor;
      total.of[0] += items[i].of[0] * factor;
      total.of[1] += items[i].of[1] * factor;
    }
  }
}

// Adds what `lanes` neighbours have, a power of two of them; all come here.
__device__ inline void add_over_lanes(Total& total, int lanes) {
#pragma unroll 1
  for (int mask = 1; mask < lanes; mask *= 2) {
    const float maximum = fmaxf(total.maximum, __shfl_xor_sync(~0u, total.maximum, mask));
    total.scale(fast_exp(total.maximum - maximum));
    total.maximum = maximum;
    total.sum += __shfl_xor_sync(~0u, total.sum, mask);
    total.of[0] += __shfl_xor_sync(~0u, total.of[0], mask);
    total.of[1] += __shfl_xor_sync(~0u, total.of[1], mask);
  }
}

// The sum that a row's products are divided by.
struct Divisor {
  float inverse;
};
__device__ inline float div(float a, Divisor b) { return a * b.inverse; }

// A row of a work tile as what comes after the combination sees it.
template <class T>
struct ResultRow {
  T* out;
  float* lse;  // null: not wanted
  const T* sink;

  ResultRow() = default;
  __device__ ResultRow(const AttentionArgs& args, const QueryPlace& at)
      : out(static_cast<T*>(args.out) + at.token * args.out_token + at.head * args.out_head),
        lse(args.lse == nullptr ? nullptr : args.lse + at.token * args.Hkv * args.G + at.head),
        sink(args.sinks == nullptr ? nullptr : static_cast<const T*>(args.sinks) + at.head) {}

  __device__ void store(RowElement e, float value) const { out[e.d] = cast<T>(value); }

  // After::of(row, element, sum, product) for the elements of a pair. The row's sum takes its sink
  // first and leaves its log.
  template <class After>
  __device__ void take(RowElement e, const Total& total) const {
    float maximum = total.maximum, sum = total.sum;
    float factor = 1.0f;
    if (sink != nullptr) {
      const float more = static_cast<float>(*sink), higher = fmaxf(maximum, more);
      factor = fast_exp(maximum - higher);
      maximum = higher;
      sum = sum * factor + fast_exp(more - higher);
    }
    if (e.d == 0 && lse != nullptr) *lse = sum > 0.0f ? maximum + fast_log(sum) : -INFINITY;
    const Divisor divisor{sum > 0.0f ? reciprocal(sum) : 1.0f};  // of nothing comes 0
    After::of(*this, e, divisor, total.of[0] * factor);
    After::of(*this, {e.row, e.d + kLineTile}, divisor, total.of[1] * factor);
  }
};

}  // namespace mirage::tile
