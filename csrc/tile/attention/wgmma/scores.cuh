// Scores of a step: how they are scaled and masked, and the weights made of them.
//
// Whether all scores have one factor or each key has its own: it is multiplied where exponentials
// are taken, in one multiply-add with the running maximum. Where anything else is done with scores
// they are what they stand for. Positions of a step are consecutive, so that most comparisons hold
// for all of its keys, or need only be looked at in a sequence's first and last steps; other
// operands are compared one by one, as everywhere.
#pragma once

#include "tile/attention/wgmma/products.cuh"

namespace mirage::tile {

// Scores and what they are multiplied by: one number, or a RowVector with log2(e) times the number
// of each key.
constexpr float kLog2E = 1.44269504f;
template <int kKeys, class Scale>
struct ScaledScores {
  const Scores<float, kWarpRows, kKeys>& scores;
  Scale scale;
};
template <int kKeys, class Scale>
struct Spans<ScaledScores<kKeys, Scale>> : Spans<Scores<float, kWarpRows, kKeys>> {};
template <int kKeys, class Scale>
__device__ float element(const ScaledScores<kKeys, Scale>& s, int k, int n, int i) {
  const float score = s.scores.at[k][n][i];
  if constexpr (std::is_same_v<Scale, float>) {
    return score * s.scale;
  } else {
    return score * s.scale.at[n][i % 2] * (1.0f / kLog2E);
  }
}

template <int kKeys>
constexpr bool kIsStep = kKeys >= kLeastStepKeys;  // others have fewer of what they call keys

template <class Out, class Op, int kKeys,
          std::enable_if_t<kIsStep<kKeys> && std::is_same_v<Op, Mul>, int> = 0>
__device__ auto map(const float& scale, const Scores<float, kWarpRows, kKeys>& scores) {
  return ScaledScores<kKeys, float>{scores, scale};
}
template <int kKeys, class Scale>
__device__ ScaledScores<kKeys, Scale> scaled(const ScaledScores<kKeys, Scale>& scores) {
  return scores;
}
template <int kKeys>
__device__ ScaledScores<kKeys, float> scaled(const Scores<float, kWarpRows, kKeys>& scores) {
  return {scores, 1.0f};
}
// Scores of another product, which the tensor cores have added to those they are added to.
struct AddedScores {};
template <class Out, class Op, int kKeys,
          std::enable_if_t<kIsStep<kKeys> && std::is_same_v<Op, Add>, int> = 0>
__device__ auto map(const Scores<float, kWarpRows, kKeys>& scores, AddedScores) {
  return scores;
}
// Of scores that are multiplied already.
__device__ inline void set_ones(float& scale) { scale = 1.0f; }
template <int kKeys>
__device__ void set_ones(RowVector<float, kKeys>& factors) {
  unrolled<kKeys / kTokenTile>([&](int n) { factors.at[n][0] = factors.at[n][1] = kLog2E; });
}
// log2(e) times what a score is multiplied by.
__device__ inline float exponent_scale(float scale, int, int) { return scale * kLog2E; }
template <int kKeys>
__device__ float exponent_scale(const RowVector<float, kKeys>& factors, int n, int i) {
  return factors.at[n][i % 2];
}

__device__ inline float fast_exp2(float a) {
  float result;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return result;
}

// Weights in the storage type. The first are computed while the products of those before go on,
// whose registers the result gets. A row's maximum is rounded once and for all of its keys alike,
// so that it divides out. kWaits: for those products, which all warps of a warpgroup do then.
// `sums` become those of the weights before they are rounded, as WgmmaProduct has them.
template <bool kWaits, class T, int kKeys, class S, int kDepth>
__device__ void pack_weights(PackedScores<T, kWarpRows, kKeys>& found, float (&sums)[4],
                             const S& scaled, const WgmmaMaxima<kDepth>& maxima) {
  constexpr int kTiles = kKeys / kTokenTile, kEarly = kTiles / 2;
  const float offsets[2] = {-maxima.at[0][0] * kLog2E, -maxima.at[0][1] * kLog2E};
  const auto weight = [&](int n, int i) {
    const float scale = exponent_scale(scaled.scale, n, i);
    return fast_exp2(__fmaf_rn(scaled.scores.at[0][n][i], scale, offsets[i / 2]));
  };
  float early[kEarly][4];
  unrolled<kEarly, 4>([&](int n, int i) { early[n][i] = weight(n, i); });
  if constexpr (kWaits) wait_products();
  unrolled<kTiles>([&](int n) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float2 pair = n < kEarly ? make_float2(early[n % kEarly][i], early[n % kEarly][i + 1])
                                     : make_float2(weight(n, i), weight(n, i + 1));
      found.at[0][n][i / 2] = from_floats<T>(pair);
      sums[i] = n == 0 ? pair.x : sums[i] + pair.x;
      sums[i + 1] = n == 0 ? pair.y : sums[i + 1] + pair.y;
    }
  });
}

// The largest of a lane's weights.
template <class T, int kKeys>
__device__ float largest_weight(const PackedScores<T, kWarpRows, kKeys>& weights) {
  Pair<T> most[4] = {weights.at[0][0][0], weights.at[0][0][1], weights.at[0][1][0],
                     weights.at[0][1][1]};
#pragma unroll
  for (int n = 2; n < kKeys / kTokenTile; ++n) {
    unrolled<2>([&](int i) {
      auto& to = most[n % 2 * 2 + i];
      to = __hmax2(to, weights.at[0][n][i]);
    });
  }
  const float2 pair = to_floats(__hmax2(__hmax2(most[0], most[1]), __hmax2(most[2], most[3])));
  return fmaxf(pair.x, pair.y);
}

template <int kKeys>
__device__ void line_maxima(float (&most)[2], const ScaledScores<kKeys, float>& scaled) {
  if (scaled.scale >= 0.0f) {
    line_maxima<Larger>(most, scaled.scores);
  } else {
    line_maxima<Smaller>(most, scaled.scores);
  }
  most[0] *= scaled.scale;
  most[1] *= scaled.scale;
}
template <int kKeys>
__device__ void line_maxima(float (&most)[2],
                            const ScaledScores<kKeys, RowVector<float, kKeys>>& keyed) {
  unrolled<2>([&](int i) {
    most[i] = -INFINITY;
    unrolled<kKeys / kTokenTile, 2>([&](int n, int j) {
      most[i] = fmaxf(most[i], keyed.scores.at[0][n][2 * i + j] * keyed.scale.at[n][j]);
    });
    most[i] *= 1.0f / kLog2E;
  });
}

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
struct Spans<LazyMask<Op, A, B>> : SpansOf<largest(Spans<A>::kKeys, Spans<B>::kKeys),
                                           largest(Spans<A>::kRows, Spans<B>::kRows)> {};

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
  unrolled<2>([&](int i) { maxima.at[0][i] = raised_maximum(maxima.at[0][i], most[i]); });
}

// How a warp decides on the maxima of its rows: for itself.
struct DecidesAlone {
  static constexpr bool kSetsFirst = true;  // maxima, before the first weights
  __device__ bool any(bool mine) const { return __any_sync(~0u, mine); }
  __device__ void share(float (&)[2]) const {}
};

// The weights of one online-softmax step: exp(score - running maximum) where the mask holds, zeros
// elsewhere. The maximum rises, and what is carried is rescaled, only if a weight is too large: few
// steps need to know their largest score. Weights are computed at most twice: of scores so large
// that rounding keeps them above the limit, they stay there. A row that has seen no key has
// infinite weights by its first maximum. Products are waited for once, by all warps.
template <class T, class Op, class A, class B, class S, int kDepth, class Decides = DecidesAlone>
__device__ auto softmax_weights(const S& given, const LazyMask<Op, A, B>& mask,
                                WgmmaMaxima<kDepth>& maxima, WgmmaProduct<kDepth>& product,
                                const Decides& decides = {}) {
  constexpr int kKeys = Spans<S>::kRows;
  auto scores = scaled(given).scores;
  auto scale = scaled(given).scale;
  const bool is_plain = __all_sync(~0u, mask.all && maxima.lane_is_set());  // as most steps
  if (!is_plain && !__all_sync(~0u, mask.all)) {
    scores = each<float>([](bool seen, float s) { return seen ? s : -INFINITY; }, mask, given);
    set_ones(scale);
  }
  const ScaledScores<kKeys, decltype(scale)> current{scores, scale};
  PackedScores<T, kWarpRows, kKeys> found;
  if (Decides::kSetsFirst && !is_plain && maxima.is_unset()) set_maxima(maxima, current);
  float sums[4];
  pack_weights<true>(found, sums, current, maxima);
  if (decides.any(largest_weight(found) > kLargestWeight)) {
    float most[2];
    line_maxima(most, current);
    share_most(most);
    decides.share(most);
    rescale_to(most, maxima, product);
    pack_weights<false>(found, sums, current, maxima);
  }
  unrolled<4>([&](int i) { product.sums()[i] += sums[i]; });
  return found;
}

}  // namespace mirage::tile
