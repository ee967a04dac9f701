// Sums over K: the tensor-core contraction of two fragments, and the plain sum of one.
#pragma once

#include <type_traits>

#include "tile/mma/fragments.cuh"

namespace mirage::tile {

template <class P>
__device__ const uint32_t& bits(const P& pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}

// d[16 rows, 8 tokens] += rows[16, 16 k] * tokens[8, 16 k], with the instruction's fragments.
// Inline PTX: including CuTe's atom costs each file 2.8 s.
template <class T>
__device__ void mma(float (&d)[4], const uint32_t (&rows)[4], const uint32_t (&tokens)[2]) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(tokens[0]), "r"(tokens[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(tokens[0]), "r"(tokens[1]));
  }
}

// The same for half h of a chunk, 16 k; rows[0] and rows[1] are the vectors of rows g and g + 8.
template <class T>
__device__ void mma(float (&d)[4], const Vec16<T> (&rows)[2], const Vec16<T>& tokens, int h) {
  mma<T>(d,
         {bits(rows[0].pairs[2 * h]), bits(rows[1].pairs[2 * h]), bits(rows[0].pairs[2 * h + 1]),
          bits(rows[1].pairs[2 * h + 1])},
         {bits(tokens.pairs[2 * h]), bits(tokens.pairs[2 * h + 1])});
}

// accum[n, m] += sum over k of rows[n, k] * tokens[m, k]
template <int kRows, int kTokens, class T, int kRowLines, int kTokenLines, int kChunks>
__device__ void contract(Accum<kRows, kTokens>& accum,
                         const Fragment<Dims::kRowsDepth, T, kRowLines, kChunks>& rows,
                         const Fragment<Dims::kTokensDepth, T, kTokenLines, kChunks>& tokens) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < Accum<kRows, kTokens>::kTiles; ++r) {
        Vec16<T> pair[2] = {rows.at[2 * r][c], {}};
        if (2 * r + 1 < kRowLines) pair[1] = rows.at[(2 * r + 1) % kRowLines][c];
#pragma unroll
        for (int m = 0; m < kTokens / kTokenTile; ++m) {
          mma<T>(accum.at[r][m], pair, tokens.at[m][c], h);
        }
      }
    }
  }
}

// partial[line] += sum over this lane's k of values[line, k]
template <Dims kDims, int kTotal, int kLines, int kChunks>
__device__ void sum_depth(Partial<kDims, kTotal>& partial,
                          const Fragment<kDims, float, kLines, kChunks>& values) {
  unrolled<kLines, kChunks, kLaneDepth / 2>([&](int i, int c, int p) {
    partial.at[i] += values.at[i][c].pairs[p].x;
    partial.at[i] += values.at[i][c].pairs[p].y;
  });
}

}  // namespace mirage::tile
