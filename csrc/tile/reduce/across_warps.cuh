// Reductions across the warps of a block, through shared memory.
//
// The warps share the depth (sliced-K), so every warp has a partial sum of every element. Each
// stores its fp32 sums; after a barrier sum_over_warps adds them in the order of the warps, so that
// every run gives the same result.
#pragma once

#include "tile/mma/fragments.cuh"

namespace mirage::tile {

// A named barrier for some of the block's warps.
template <int kBarrier, int kThreads>
__device__ void sync_threads() {
  asm volatile("barrier.cta.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// One element of the block's output tile.
struct Element {
  int row, token;
};

// Lines rounded up to whole row tiles: the extent of a product over a dim that the grid does not
// cut.
__host__ __device__ constexpr int padded(int lines) {
  return (lines + kRowTile - 1) / kRowTile * kRowTile;
}

// [kWarps, kTokens, kRows]; with this pitch the lanes' writes and the reads along rows are free of
// bank conflicts (2 * pitch = 8 mod 32).
template <int kRows, int kTokens, int kWarps>
struct AccumPartials {
  static constexpr int kPitch = kRows + 4;
  static constexpr int kBytes = kWarps * kTokens * kPitch * sizeof(float);
  const float* at;

  // The sums at an address.
  __device__ static AccumPartials in(const char* shared) {
    return {reinterpret_cast<const float*>(shared)};
  }
};

// [kTokens or kRows, kWarps]
template <Dims kDims, int kLines, int kWarps>
struct WarpPartials {
  static constexpr int kBytes = kWarps * kLines * sizeof(float);
  const float* at;
};

template <int kTokens, int kWarps>
using TokenPartials = WarpPartials<Dims::kTokensDepth, kTokens, kWarps>;

template <int kRows, int kWarps>
using RowPartials = WarpPartials<Dims::kRowsDepth, kRows, kWarps>;

template <int kWarps, int kRows, int kTokens>
__device__ AccumPartials<kRows, kTokens, kWarps> store_partials(
    char* shared, const Accum<kRows, kTokens>& accum) {
  constexpr int kPitch = AccumPartials<kRows, kTokens, kWarps>::kPitch;
  float* mine = reinterpret_cast<float*>(shared) + warp_index() * kTokens * kPitch;
#pragma unroll
  for (int r = 0; r < Accum<kRows, kTokens>::kTiles; ++r) {
#pragma unroll
    for (int m = 0; m < kTokens / kTokenTile; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = r * kRowTile + lane_line() + i / 2 * 8;
        const int token = m * kTokenTile + lane_quarter() * 2 + i % 2;
        if (r * kRowTile + i / 2 * 8 < kRows) mine[token * kPitch + row] = accum.at[r][m][i];
      }
    }
  }
  return {reinterpret_cast<const float*>(shared)};
}

// The four lanes of a line add up first: their k are disjoint.
template <int kWarps, Dims kDims, int kLines>
__device__ WarpPartials<kDims, kLines, kWarps> store_partials(
    char* shared, const Partial<kDims, kLines>& partial) {
  float* mine = reinterpret_cast<float*>(shared) + warp_index();
#pragma unroll
  for (int i = 0; i < kLines / kLineTile; ++i) {
    float sum = partial.at[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane_quarter() == 0) mine[(i * kLineTile + lane_line()) * kWarps] = sum;
  }
  return {reinterpret_cast<const float*>(shared)};
}

template <int kRows, int kTokens, int kWarps>
__device__ float sum_over_warps(AccumPartials<kRows, kTokens, kWarps> partials, Element e) {
  constexpr int kPitch = AccumPartials<kRows, kTokens, kWarps>::kPitch;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += partials.at[(w * kTokens + e.token) * kPitch + e.row];
  return sum;
}

template <Dims kDims, int kLines, int kWarps>
__device__ float sum_over_warps(WarpPartials<kDims, kLines, kWarps> partials, Element e) {
  const int line = kDims == Dims::kTokensDepth ? e.token : e.row;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += partials.at[line * kWarps + w];
  return sum;
}

}  // namespace mirage::tile
