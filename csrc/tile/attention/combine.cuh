// Sums of some keys, by pairs of elements: how those of different keys are added, and become rows
// of the result.
#pragma once

#include "tile/attention/flash_decode/products.cuh"
#include "tile/sync/bounded_wait.cuh"

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

// Some elements of a row of the product, and the row's maximum and sum.
template <int kOf>
struct Total {
  float of[kOf] = {};
  float maximum = RowMaxima<kTokenTile>::kLowest, sum = 0.0f;

  // Relative to a maximum that is not lower.
  __device__ void raise(float higher) {
    const float factor = near_exp(maximum - higher);
    unrolled<kOf>([&](int i) { of[i] *= factor; });
    sum *= factor;
    maximum = higher;
  }
  __device__ void add(const Total& other, float factor) {
    sum += other.sum * factor;
    unrolled<kOf>([&](int i) { of[i] += other.of[i] * factor; });
  }
};

// A pair as it is sent and left.
__device__ inline Total<2> unpacked(float4 all) { return {{all.x, all.y}, all.z, all.w}; }
__device__ inline float4 packed(const Total<2>& total) {
  return make_float4(total.of[0], total.of[1], total.maximum, total.sum);
}

// Adds left(first) to left(last), kAtOnce of them read at once; kWhole: a multiple of that.
template <int kAtOnce, bool kWhole, int kOf, class Left>
__device__ void add_left(Total<kOf>& total, int first, int last, Left left) {
#pragma unroll 1
  for (; first <= last; first += kAtOnce) {
    Total<kOf> items[kAtOnce];
    float maximum = total.maximum;
    unrolled<kAtOnce>([&](int i) { items[i] = left(kWhole ? first + i : min(first + i, last)); });
    unrolled<kAtOnce>([&](int i) { maximum = fmaxf(maximum, items[i].maximum); });
    total.raise(maximum);
    unrolled<kAtOnce>([&](int i) {
      const bool there = kWhole || first + i <= last;
      total.add(items[i], there ? near_exp(items[i].maximum - maximum) : 0.0f);
    });
  }
}

// Tells who finishes the work tile; the other threads' writes were before a barrier.
__device__ inline void announce(uint64_t* at, uint64_t nonce) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(nonce) : "memory");
}

__device__ inline void await(uint64_t* at, uint64_t nonce) {
  wait_at_most([&] {
    uint64_t found;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(at) : "memory");
    return found == nonce;
  });
  *at = 0;
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
  template <class Args>
  __device__ ResultRow(const Args& args, const QueryPlace& at)
      : out(static_cast<T*>(args.out) + at.token * args.out_token + at.head * args.out_head),
        lse(args.lse == nullptr ? nullptr : args.lse + at.token * args.Hkv * args.G + at.head),
        sink(args.sinks == nullptr ? nullptr : static_cast<const T*>(args.sinks) + at.head) {}

  __device__ void store(RowElement e, float value) const { out[e.d] = cast<T>(value); }

  // What the row's products, times the factor, are divided by: its sum takes its sink, and leaves
  // its log where `leads`.
  __device__ Divisor divisor(float maximum, float sum, bool leads, float& factor) const {
    factor = 1.0f;
    if (sink != nullptr) {
      const float more = static_cast<float>(*sink), higher = fmaxf(maximum, more);
      factor = near_exp(maximum - higher);
      sum = sum * factor + near_exp(more - higher);
      maximum = higher;
    }
    if (leads && lse != nullptr) *lse = sum > 0.0f ? maximum + fast_log(sum) : -INFINITY;
    return {sum > 0.0f ? reciprocal(sum) : 1.0f};  // of nothing comes 0
  }

  // After::of(row, element, sum, product) for the elements of a pair.
  template <class After>
  __device__ void take(RowElement e, const Total<2>& total) const {
    float factor;
    const Divisor sum = divisor(total.maximum, total.sum, e.d == 0, factor);
    After::of(*this, e, sum, total.of[0] * factor);
    After::of(*this, {e.row, e.d + kLineTile}, sum, total.of[1] * factor);
  }
};

}  // namespace mirage::tile
