// Scores of a step that are scaled, whether all have one factor or each key has its own: the factor
// is multiplied where exponentials are taken, in one multiply-add with the running maximum. Where
// anything else is done with them they are what they stand for.
#pragma once

#include "tile/attention/wgmma/products.cuh"

namespace mirage::tile {

template <int kKeys>
struct ScaledScores {
  const Scores<float, kWarpRows, kKeys>& scores;
  float scale;
};
// Scores that are each multiplied by a number of its key; `factors` are log2(e) times these.
constexpr float kLog2E = 1.44269504f;
template <int kKeys>
struct KeyedScores {
  const Scores<float, kWarpRows, kKeys>& scores;
  RowVector<float, kKeys> factors;
};
template <int kKeys>
struct Spans<ScaledScores<kKeys>> : Spans<Scores<float, kWarpRows, kKeys>> {};
template <int kKeys>
struct Spans<KeyedScores<kKeys>> : Spans<Scores<float, kWarpRows, kKeys>> {};
template <int kKeys>
__device__ float element(const ScaledScores<kKeys>& s, int k, int n, int i) {
  return s.scores.at[k][n][i] * s.scale;
}
template <int kKeys>
__device__ float element(const KeyedScores<kKeys>& s, int k, int n, int i) {
  return s.scores.at[k][n][i] * s.factors.at[n][i % 2] * (1.0f / kLog2E);
}

template <int kKeys>
constexpr bool kIsStep = kKeys >= kProductKeys;  // other kernels have fewer of what they call keys

template <class Out, class Op, int kKeys,
          std::enable_if_t<kIsStep<kKeys> && std::is_same_v<Op, Mul>, int> = 0>
__device__ ScaledScores<kKeys> map(const float& scale,
                                   const Scores<float, kWarpRows, kKeys>& scores) {
  return {scores, scale};
}
template <int kKeys>
__device__ const Scores<float, kWarpRows, kKeys>& unscaled(
    const Scores<float, kWarpRows, kKeys>& scores) {
  return scores;
}
template <int kKeys>
__device__ const Scores<float, kWarpRows, kKeys>& unscaled(const ScaledScores<kKeys>& scores) {
  return scores.scores;
}
template <int kKeys>
__device__ const Scores<float, kWarpRows, kKeys>& unscaled(const KeyedScores<kKeys>& scores) {
  return scores.scores;
}
// What scores are multiplied by; the same of scores that are multiplied already; both together.
template <int kKeys>
__device__ float scale_of(const Scores<float, kWarpRows, kKeys>&) {
  return 1.0f;
}
template <int kKeys>
__device__ float scale_of(const ScaledScores<kKeys>& scores) {
  return scores.scale;
}
template <int kKeys>
__device__ const RowVector<float, kKeys>& scale_of(const KeyedScores<kKeys>& scores) {
  return scores.factors;
}
__device__ inline void set_ones(float& scale) { scale = 1.0f; }
template <int kKeys>
__device__ void set_ones(RowVector<float, kKeys>& factors) {
#pragma unroll
  for (int n = 0; n < kKeys / kTokenTile; ++n) factors.at[n][0] = factors.at[n][1] = kLog2E;
}
template <int kKeys>
__device__ ScaledScores<kKeys> times(const Scores<float, kWarpRows, kKeys>& scores, float scale) {
  return {scores, scale};
}
template <int kKeys>
__device__ KeyedScores<kKeys> times(const Scores<float, kWarpRows, kKeys>& scores,
                                    const RowVector<float, kKeys>& factors) {
  return {scores, factors};
}
// log2(e) times what a score is multiplied by.
template <int kKeys>
__device__ float exponent_scale(const ScaledScores<kKeys>& scaled, int, int) {
  return scaled.scale * kLog2E;
}
template <int kKeys>
__device__ float exponent_scale(const KeyedScores<kKeys>& keyed, int n, int i) {
  return keyed.factors.at[n][i % 2];
}

__device__ inline float fast_exp2(float a) {
  float result;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return result;
}

// Weights in the storage type. The first are computed while the products of those before go on,
// whose registers the result gets. A row's maximum is rounded once and for all of its keys alike,
// so that it divides out. kWaits: for those products, which all warps of a warpgroup do then.
template <bool kWaits, class T, int kKeys, class S, int kDepth>
__device__ void pack_weights(PackedScores<T, kWarpRows, kKeys>& found, const S& scaled,
                             const WgmmaMaxima<kDepth>& maxima) {
  constexpr int kTiles = kKeys / kTokenTile, kEarly = kTiles / 2;
  const float offsets[2] = {-maxima.at[0][0] * kLog2E, -maxima.at[0][1] * kLog2E};
  const auto weight = [&](int n, int i) {
    const float scale = exponent_scale(scaled, n, i);
    return fast_exp2(__fmaf_rn(scaled.scores.at[0][n][i], scale, offsets[i / 2]));
  };
  float early[kEarly][4];
#pragma unroll
  for (int n = 0; n < kEarly; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) early[n][i] = weight(n, i);
  }
  if constexpr (kWaits) wait_products<0>();
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const float2 pair = n < kEarly ? make_float2(early[n % kEarly][i], early[n % kEarly][i + 1])
                                     : make_float2(weight(n, i), weight(n, i + 1));
      found.at[0][n][i / 2] = from_floats<T>(pair);
    }
  }
}

// The largest of a lane's weights.
template <class T, int kKeys>
__device__ float largest_weight(const PackedScores<T, kWarpRows, kKeys>& weights) {
  Pair<T> most[4] = {weights.at[0][0][0], weights.at[0][0][1], weights.at[0][1][0],
                     weights.at[0][1][1]};
#pragma unroll
  for (int n = 2; n < kKeys / kTokenTile; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto& to = most[n % 2 * 2 + i];
      to = __hmax2(to, weights.at[0][n][i]);
    }
  }
  const float2 pair = to_floats(__hmax2(__hmax2(most[0], most[1]), __hmax2(most[2], most[3])));
  return fmaxf(pair.x, pair.y);
}

template <int kKeys>
__device__ void line_maxima(float (&most)[2], const ScaledScores<kKeys>& scaled) {
  if (scaled.scale >= 0.0f) {
    line_maxima<Larger>(most, scaled.scores);
  } else {
    line_maxima<Smaller>(most, scaled.scores);
  }
  most[0] *= scaled.scale;
  most[1] *= scaled.scale;
}
template <int kKeys>
__device__ void line_maxima(float (&most)[2], const KeyedScores<kKeys>& keyed) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    most[i] = -INFINITY;
#pragma unroll
    for (int n = 0; n < kKeys / kTokenTile; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        most[i] = fmaxf(most[i], keyed.scores.at[0][n][2 * i + j] * keyed.factors.at[n][j]);
      }
    }
    most[i] *= 1.0f / kLog2E;
  }
}

}  // namespace mirage::tile
