// Products with the tokens on the M side of the tensor cores: what kernels would do whose layouts
// nobody planned. Emitted for benchmarks only; the shipped kernels give the M side to the weights.
//
// Eight tokens fill half of the sixteen rows of an mma, the other half multiplies zeros.
#pragma once

#include "tile/contract.cuh"
#include "tile/meeting.cuh"

namespace mirage::tile {

// [M, N] fp32. Of tile (m, r): at[0], at[1] = token 16m + g, rows 8r + 2t + 0..1; at[2], at[3] =
// the same of token 16m + g + 8.
template <int kRows_, int kTokens_>
struct TurnedAccum {
  static constexpr int kRows = kRows_, kTokens = kTokens_;
  static constexpr int kTokenTiles = (kTokens + kRowTile - 1) / kRowTile;
  float at[kTokenTiles][kRows / kTokenTile][4] = {};
};

// accum[n, m] += sum over k of rows[n, k] * tokens[m, k]
template <int kRows, int kTokens, class T, int kRowLines, int kTokenLines, int kChunks>
__device__ void contract(TurnedAccum<kRows, kTokens>& accum,
                         const Fragment<Dims::kRowsDepth, T, kRowLines, kChunks>& rows,
                         const Fragment<Dims::kTokensDepth, T, kTokenLines, kChunks>& tokens) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int m = 0; m < TurnedAccum<kRows, kTokens>::kTokenTiles; ++m) {
        Octet<T> pair[2] = {tokens.at[2 * m][c], {}};
        if constexpr (kTokenLines > 1) pair[1] = tokens.at[2 * m + 1][c];
#pragma unroll
        for (int r = 0; r < kRows / kTokenTile; ++r) {
          mma<T>(accum.at[m][r], pair, rows.at[r][c], h);
        }
      }
    }
  }
}

template <int kWarps, int kRows, int kTokens>
__device__ AccumMeeting<kRows, kTokens, kWarps> meet(char* shared,
                                                     const TurnedAccum<kRows, kTokens>& accum) {
  constexpr int kPitch = AccumMeeting<kRows, kTokens, kWarps>::kPitch;
  float* mine = reinterpret_cast<float*>(shared) + warp_index() * kTokens * kPitch;
#pragma unroll
  for (int m = 0; m < TurnedAccum<kRows, kTokens>::kTokenTiles; ++m) {
#pragma unroll
    for (int r = 0; r < kRows / kTokenTile; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = m * kRowTile + lane_line() + i / 2 * kLineTile;
        const int row = r * kTokenTile + lane_quarter() * 2 + i % 2;
        if (token < kTokens) mine[token * kPitch + row] = accum.at[m][r][i];
      }
    }
  }
  return {reinterpret_cast<const float*>(shared)};
}

}  // namespace mirage::tile
