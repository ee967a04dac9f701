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

  // After::of(rows, element, sum, product) for a quad from `first` on, whose rows' sums take their
  // sinks first and leave their logs.
  template <class After>
  __device__ void take(RowElement first, Total& total, int rows) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (first.row + j >= rows) continue;
      const RowElement e{first.row + j, first.d};
      if (args_.sinks != nullptr) {
        const auto* sinks = static_cast<const T*>(args_.sinks);
        const float sink = static_cast<float>(sinks[place(e.row).head]);
        total.lower_to(j, fmaxf(total.peak[j], sink));
        total.sum[j] += fast_exp(sink - total.peak[j]);
      }
      if (e.d == 0 && args_.lse != nullptr) {
        const QueryPlace at = place(e.row);
        args_.lse[at.token * args_.Hkv * args_.G + at.head] =
            total.sum[j] > 0.0f ? total.peak[j] + fast_log(total.sum[j]) : -INFINITY;
      }
      const Divisor sum{total.sum[j] > 0.0f ? reciprocal(total.sum[j]) : 1.0f};  // of nothing: 0
      After::of(*this, e, sum, total.of[j]);
      After::of(*this, {e.row, e.d + kLineTile}, sum, total.of[2 + j]);
    }
  }

 private:
  __device__ QueryPlace place(int row) const { return segment_.template place<kRows>(args_, row); }

  const AttentionArgs& args_;
  const Segment& segment_;
};

}  // namespace mirage::tile
