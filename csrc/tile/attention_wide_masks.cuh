// Masks of a step of keys, not computed where a whole step is seen.
//
// Positions of a step are consecutive, so that most comparisons hold for all of its keys or need
// only be looked at in a sequence's first and last steps. Operands that have no such form are
// compared one by one, as everywhere.
#pragma once

#include "tile/attention_wide_scores.cuh"

namespace mirage::tile {

// The positions of a step's keys. Those that are another part's count as keys behind the length.
template <int kKeys>
struct StepPositions {
  int first;      // of the step
  int end;        // of the part
  int behind;     // added from there on
  int added = 0;  // to all
};

// a < b, or both a and b, element by element when they are asked for.
struct IsLess {
  template <class V>
  __device__ static bool of(V a, V b) {
    return a < b;
  }
};
struct AreBoth {
  __device__ static bool of(bool a, bool b) { return a && b; }
};
template <class Op, class A, class B>
struct LazyMask {
  const A& a;
  const B& b;
  bool all;  // holds for all that this lane has
};

// Scores, perhaps scaled, where a mask holds, and another number elsewhere.
template <class Mask, class S>
struct LazyScores {
  const Mask& mask;
  const S& scores;
  float other;
};

template <int kKeys>
struct Spans<StepPositions<kKeys>> : Spans<RowVector<int, kKeys>> {};
template <class Op, class A, class B>
struct Spans<LazyMask<Op, A, B>> {
  static constexpr int kKeys = largest(Spans<A>::kKeys, Spans<B>::kKeys);
  static constexpr int kRows = largest(Spans<A>::kRows, Spans<B>::kRows);
  static constexpr bool kLines = false;
};
template <class Mask, class S>
struct Spans<LazyScores<Mask, S>> : Spans<S> {};

template <int kKeys>
__device__ int element(const StepPositions<kKeys>& p, int, int n, int i) {
  const int at = p.first + n * kTokenTile + lane_quarter() * 2 + i % 2;
  return (at < p.end ? at : at + p.behind) + p.added;
}
template <class Op, class A, class B>
__device__ bool element(const LazyMask<Op, A, B>& m, int k, int n, int i) {
  return Op::of(element(m.a, k, n, i), element(m.b, k, n, i));
}
template <class Mask, class S>
__device__ float element(const LazyScores<Mask, S>& s, int k, int n, int i) {
  return element(s.mask, k, n, i) ? element(s.scores, k, n, i) : s.other;
}

// The smallest and the largest of what a lane has.
struct Bounds {
  int least, most;
};
__device__ inline Bounds bounds(int a) { return {a, a}; }
__device__ inline Bounds bounds(const KeyVector<int, kWarpRows>& rows) {
  return {min(rows.at[0][0], rows.at[0][1]), max(rows.at[0][0], rows.at[0][1])};
}
template <int kKeys>
__device__ Bounds bounds(const StepPositions<kKeys>& p) {
  const int last = p.first + kKeys - 1;
  return {p.first + p.added, (last < p.end ? last : last + p.behind) + p.added};
}

template <class Out, class Op, int kKeys>
__device__ auto map(const int& a, const StepPositions<kKeys>& b) {
  static_assert(std::is_same_v<Op, Add> && std::is_same_v<Out, int>, "positions are only shifted");
  StepPositions<kKeys> moved = b;
  moved.added += a;
  return moved;
}
template <int kKeys, class B>
__device__ auto less(const StepPositions<kKeys>& a, const B& b) {
  return LazyMask<IsLess, StepPositions<kKeys>, B>{a, b, bounds(a).most < bounds(b).least};
}
template <int kKeys, class A>
__device__ auto less(const A& a, const StepPositions<kKeys>& b) {
  return LazyMask<IsLess, A, StepPositions<kKeys>>{a, b, bounds(a).most < bounds(b).least};
}
template <class OpA, class A, class B, class OpC, class C, class D>
__device__ auto both(const LazyMask<OpA, A, B>& a, const LazyMask<OpC, C, D>& b) {
  return LazyMask<AreBoth, LazyMask<OpA, A, B>, LazyMask<OpC, C, D>>{a, b, a.all && b.all};
}

template <class Out, class Op, class A, class B, class S>
__device__ auto where(const LazyMask<Op, A, B>& condition, const S& scores, const float& other) {
  static_assert(std::is_same_v<Out, float>, "weights are another where()");
  return LazyScores<LazyMask<Op, A, B>, S>{condition, scores, other};
}

// The peak rises when weights are computed, if one of them is too large: few steps need to know
// their largest score.
template <class Mask, class S, int kDepth>
__device__ void raise(WidePeaks<kDepth>& peak, const LazyScores<Mask, S>&, WideSums&,
                      WideProduct<kDepth>& product) {
  peak.product = &product;
}

// The first peaks of a warp: all sums are zeros, so that none has to become relative to them.
template <class S, int kDepth>
__device__ void set_peaks(WidePeaks<kDepth>& peaks, const S& scaled) {
  float most[2];
  line_peaks(most, scaled);
  share_most(most);
#pragma unroll
  for (int i = 0; i < 2; ++i) peaks.at[0][i] = raised(peaks.at[0][i], most[i]);
}

// Weights under a mask, zeros elsewhere: that is all that is asked for. They are computed at most
// twice: of scores so large that rounding keeps them above the limit, they stay there. By the
// peak of a row that has seen no key weights are infinite. Products are waited for once, by all
// warps.
template <class T, class Op, class A, class B, class S, int kDepth>
__device__ auto where(const LazyMask<Op, A, B>& condition, const Weights<S, kDepth>& weights,
                      const float&) {
  constexpr int kKeys = Spans<S>::kRows;
  const auto& lowered = weights.lowered;
  auto& peaks = const_cast<WidePeaks<kDepth>&>(lowered.peaks);  // raise() had it as such
  auto scores = unscaled(lowered.scores);
  auto scale = scale_of(lowered.scores);
  const bool is_plain = __all_sync(~0u, condition.all && peaks.lane_is_set());  // as most steps
  if (!is_plain && !__all_sync(~0u, condition.all)) {
    scores = each<float>([](float s) { return s; },
                         LazyScores<LazyMask<Op, A, B>, S>{condition, lowered.scores, -INFINITY});
    set_ones(scale);
  }
  const auto scaled = times(scores, scale);
  PackedScores<T, kWarpRows, kKeys> found;
  if (!is_plain && peaks.is_unset()) set_peaks(peaks, scaled);
  pack_weights<true>(found, scaled, peaks);
  if (!__any_sync(~0u, largest_weight(found) > kLargestWeight)) return found;
  float most[2];
  line_peaks(most, scaled);
  share_most(most);
  raise_to(most, peaks, *peaks.product);
  pack_weights<false>(found, scaled, peaks);
  return found;
}

}  // namespace mirage::tile
