// What becomes of a work tile's sums: the results, row by row.
#pragma once

#include "tile/attention/flash_decode/reduction.cuh"

namespace mirage::tile {

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
