// What becomes of a segment's sums: the results, row by row.
#pragma once

#include "tile/attention_meet.cuh"

namespace mirage::tile {

// The rows of a segment as what comes after the combination sees them.
template <class T, int kRows>
class ResultRows {
 public:
  __device__ ResultRows(const AttentionArgs& args, const Segment& segment)
      : args_(args), segment_(segment) {}

  __device__ void store(RowElement e, float value) const {
    const QueryPlace at = place(e.row);
    static_cast<T*>(args_.out)[at.token * args_.out_token + at.head * args_.out_head + e.d] =
        cast<T>(value);
  }

  // After::of(rows, element, sum, product) for four elements of a row, whose sum takes its sink
  // first and leaves its log.
  template <class After>
  __device__ void take(RowElement e, Total& total) const {
    if (args_.sinks != nullptr) {
      const auto* sinks = static_cast<const T*>(args_.sinks);
      const float sink = static_cast<float>(sinks[place(e.row).head]);
      total.lower_to(fmaxf(total.peak, sink));
      total.sum += fast_exp(sink - total.peak);
    }
    if (e.d == 0 && args_.lse != nullptr) {
      const QueryPlace at = place(e.row);
      args_.lse[at.token * args_.Hkv * args_.G + at.head] =
          total.sum > 0.0f ? total.peak + logf(total.sum) : -INFINITY;
    }
    const Divisor sum{total.sum > 0.0f ? __frcp_rn(total.sum) : 1.0f};  // of nothing: 0 comes out
#pragma unroll
    for (int i = 0; i < 4; ++i) After::of(*this, {e.row, e.d + i}, sum, total.values[i]);
  }

 private:
  __device__ QueryPlace place(int row) const { return segment_.template place<kRows>(args_, row); }

  const AttentionArgs& args_;
  const Segment& segment_;
};

}  // namespace mirage::tile
