// Masks of a step of keys, not computed where a whole step is seen.
//
// Positions of a step are consecutive, so that most comparisons hold for all of its keys or need
// only be looked at in a sequence's first and last steps. Operands that have no such form are
// compared one by one, as everywhere.
#pragma once

#include "tile/attention/wgmma/scores.cuh"

namespace mirage::tile {

// The positions of a step's keys. Those that are another item's count as keys behind the length.
template <int kKeys>
struct StepPositions {
  int first;      // of the step
  int end;        // of the item
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

template <int kKeys>
struct Spans<StepPositions<kKeys>> : Spans<RowVector<int, kKeys>> {};
template <class Op, class A, class B>
struct Spans<LazyMask<Op, A, B>> {
  static constexpr int kKeys = largest(Spans<A>::kKeys, Spans<B>::kKeys);
  static constexpr int kRows = largest(Spans<A>::kRows, Spans<B>::kRows);
  static constexpr bool kLines = false;
};

template <int kKeys>
__device__ int element(const StepPositions<kKeys>& p, int, int n, int i) {
  const int at = p.first + n * kTokenTile + lane_quarter() * 2 + i % 2;
  return (at < p.end ? at : at + p.behind) + p.added;
}
template <class Op, class A, class B>
__device__ bool element(const LazyMask<Op, A, B>& m, int k, int n, int i) {
  return Op::of(element(m.a, k, n, i), element(m.b, k, n, i));
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

// The first maxima of a warp: all sums are zeros, so that none has to become relative to them.
template <class S, int kDepth>
__device__ void set_maxima(WgmmaMaxima<kDepth>& maxima, const S& scaled) {
  float most[2];
  line_maxima(most, scaled);
  share_most(most);
#pragma unroll
  for (int i = 0; i < 2; ++i) maxima.at[0][i] = raised_maximum(maxima.at[0][i], most[i]);
}

// The weights of one online-softmax step: exp(score - running maximum) where the mask holds, zeros
// elsewhere. The maximum rises, and what is carried is rescaled, only if a weight is too large: few
// steps need to know their largest score. Weights are computed at most twice: of scores so large
// that rounding keeps them above the limit, they stay there. A row that has seen no key has
// infinite weights by its first maximum. Products are waited for once, by all warps.
template <class T, class Op, class A, class B, class S, int kDepth>
__device__ auto softmax_weights(const S& given, const LazyMask<Op, A, B>& mask,
                                WgmmaMaxima<kDepth>& maxima, WgmmaProduct<kDepth>& product) {
  constexpr int kKeys = Spans<S>::kRows;
  auto scores = unscaled(given);
  auto scale = scale_of(given);
  const bool is_plain = __all_sync(~0u, mask.all && maxima.lane_is_set());  // as most steps
  if (!is_plain && !__all_sync(~0u, mask.all)) {
    scores = each<float>([](bool seen, float s) { return seen ? s : -INFINITY; }, mask, given);
    set_ones(scale);
  }
  const auto scaled = times(scores, scale);
  PackedScores<T, kWarpRows, kKeys> found;
  if (!is_plain && maxima.is_unset()) set_maxima(maxima, scaled);
  pack_weights<true>(found, scaled, maxima);
  if (!__any_sync(~0u, largest_weight(found) > kLargestWeight)) return found;
  float most[2];
  line_maxima(most, scaled);
  share_most(most);
  rescale_to(most, maxima, product);
  pack_weights<false>(found, scaled, maxima);
  return found;
}

}  // namespace mirage::tile
