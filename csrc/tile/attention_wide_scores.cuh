// Scores of a step that are scaled, and lowered by a peak, as their exponentials are taken: one
// multiply-add for each. Where anything else is done with them they are what they stand for.
#pragma once

#include "tile/attention_wide_products.cuh"

namespace mirage::tile {

template <int kKeys>
struct ScaledScores {
  const Scores<float, kWarpRows, kKeys>& scores;
  float scale;
};
// Scores, or scaled ones, minus each row's peak.
template <class S>
struct LoweredScores {
  const S& scores;
  const WidePeaks& peaks;
};

template <int kKeys>
struct Spans<ScaledScores<kKeys>> : Spans<Scores<float, kWarpRows, kKeys>> {};
template <class S>
struct Spans<LoweredScores<S>> : Spans<S> {};
template <int kKeys>
__device__ float element(const ScaledScores<kKeys>& s, int k, int n, int i) {
  return s.scores.at[k][n][i] * s.scale;
}
template <class S>
__device__ float element(const LoweredScores<S>& s, int k, int n, int i) {
  return element(s.scores, k, n, i) - s.peaks.at[0][i / 2];
}

template <int kKeys>
constexpr bool kIsStep = kKeys >= kProductKeys;  // other kernels have fewer of what they call keys

template <class Out, class Op, int kKeys,
          std::enable_if_t<kIsStep<kKeys> && std::is_same_v<Op, Mul>, int> = 0>
__device__ ScaledScores<kKeys> map(const float& scale,
                                   const Scores<float, kWarpRows, kKeys>& scores) {
  return {scores, scale};
}
template <class Out, class Op, int kKeys, std::enable_if_t<std::is_same_v<Op, Sub>, int> = 0>
__device__ LoweredScores<Scores<float, kWarpRows, kKeys>> map(
    const Scores<float, kWarpRows, kKeys>& scores, const WidePeaks& peaks) {
  return {scores, peaks};
}
template <class Out, class Op, int kKeys, std::enable_if_t<std::is_same_v<Op, Sub>, int> = 0>
__device__ LoweredScores<ScaledScores<kKeys>> map(const ScaledScores<kKeys>& scores,
                                                  const WidePeaks& peaks) {
  return {scores, peaks};
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
__device__ float scale_of(const Scores<float, kWarpRows, kKeys>&) {
  return 1.0f;
}
template <int kKeys>
__device__ float scale_of(const ScaledScores<kKeys>& scores) {
  return scores.scale;
}

__device__ inline float fast_exp2(float a) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return result;
}

// A row's peak is rounded once and for all of its keys alike, so that it divides out.
template <class Out, class Op, class S, std::enable_if_t<std::is_same_v<Op, Exp>, int> = 0>
__device__ auto map(const LoweredScores<S>& lowered) {
  constexpr float kLog2E = 1.44269504f;
  auto result = unscaled(lowered.scores);
  const float scale = scale_of(lowered.scores) * kLog2E;
  constexpr int kTiles = sizeof(result.at[0]) / sizeof(result.at[0][0]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float offset = -lowered.peaks.at[0][i / 2] * kLog2E;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      result.at[0][n][i] = fast_exp2(__fmaf_rn(result.at[0][n][i], scale, offset));
    }
  }
  return result;
}

template <int kKeys>
__device__ void line_peaks(float (&most)[2], const ScaledScores<kKeys>& scaled) {
  if (scaled.scale >= 0.0f) {
    line_peaks(most, scaled.scores);
    most[0] *= scaled.scale;
    most[1] *= scaled.scale;
  } else {
    line_peaks(most, each<float>([](float s) { return s; }, scaled));
  }
}

}  // namespace mirage::tile
