// Register fragments of a warp, each type named by the tensor dims that it spans.
//
// N are rows of a weight, M tokens, K the contracted depth; a line is a row or a token. All
// fragments have one lane map: lane = 4 * g + t holds, of every chunk of 32 k, elements k = 32 *
// chunk + 8 * t + 0..7 of lines 8 * i + g. So a lane loads 16 contiguous bytes, four lanes 64, and
// nothing is shuffled between memory and the tensor core. The instruction mma.m16n8k16 expects
// other k in each lane, but a contraction gives the same sum under any order of k that both
// operands share. Half h of a chunk (elements 4h .. 4h+3 of every lane) is one mma.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace mirage::tile {

constexpr int kWarpLanes = 32;
template <class Config>
constexpr int kBlockThreads = Config::kWarps * kWarpLanes;
constexpr int kVec16Bytes = 16;   // of a 2-byte type: what one lane copies at a time
constexpr int kLaneDepth = 8;     // k per lane and chunk
constexpr int kChunkDepth = 32;   // k per chunk: four lanes
constexpr int kChunkVectors = 4;  // per line and chunk
constexpr int kLineTile = 8;      // lines (rows or tokens) per vector of a lane
constexpr int kRowTile = 16;      // rows per mma
constexpr int kTokenTile = 8;     // tokens per mma

// Lanes to a line of so many vectors: a power of two, `least` or more; the last may have none.
constexpr int lanes_of_line(int vectors, int least) {
  return least < vectors ? lanes_of_line(vectors, 2 * least) : least;
}

template <class T>
struct PairOf;
template <>
struct PairOf<__half> {
  using type = __half2;
};
template <>
struct PairOf<__nv_bfloat16> {
  using type = __nv_bfloat162;
};
template <>
struct PairOf<float> {
  using type = float2;
};
template <class T>
using Pair = typename PairOf<T>::type;

// Eight consecutive k of one line: 16 bytes of a 2-byte type.
template <class T>
struct alignas(16) Vec16 {
  Pair<T> pairs[kLaneDepth / 2];
};

enum class Dims { kDepth, kRowsDepth, kTokensDepth };

template <Dims kDims, class T, int kLines_, int kChunks_>
struct Fragment {
  using Element = T;
  static constexpr int kLines = kLines_, kChunks = kChunks_;
  Vec16<T> at[kLines][kChunks];
};

// Calls body(i, j, ..) for all numbers below the extents, in order, as straight code.
template <int kExtent, int... kMore, class Body>
__device__ void unrolled(Body body) {
#pragma unroll
  for (int i = 0; i < kExtent; ++i) {
    if constexpr (sizeof...(kMore) == 0) {
      body(i);
    } else {
      unrolled<kMore...>([&](auto... rest) { body(i, rest...); });
    }
  }
}

// The fragment of what at(line, chunk) gives.
template <class Frag, class At>
__device__ Frag filled(At at) {
  Frag found;
  unrolled<Frag::kLines, Frag::kChunks>([&](int i, int c) { found.at[i][c] = at(i, c); });
  return found;
}

template <class T, int kRows, int kDepth>  // [N, K]
using RowFrag = Fragment<Dims::kRowsDepth, T, kRows / kLineTile, kDepth / kChunkDepth>;

template <class T, int kTokens, int kDepth>  // [M, K]
using TokenFrag = Fragment<Dims::kTokensDepth, T, kTokens / kLineTile, kDepth / kChunkDepth>;

template <class T, int kDepth>  // [K], the same in all lanes of equal t
using DepthFrag = Fragment<Dims::kDepth, T, 1, kDepth / kChunkDepth>;

// [N, M] fp32 accumulators of mma.m16n8k16. Of tile (r, m): at[0], at[1] = row 16r + g, tokens 8m +
// 2t + 0..1; at[2], at[3] = the same of row 16r + g + 8. If the rows are an odd number of eights,
// the second half of the last tile is unused.
template <int kRows_, int kTokens_>
struct Accum {
  static constexpr int kRows = kRows_, kTokens = kTokens_;
  static constexpr int kTiles = (kRows + kRowTile - 1) / kRowTile;
  float at[kTiles][kTokens / kTokenTile][4] = {};
};

// [M] or [N] fp32: this lane's partial sums over k, of lines 8 * i + g.
template <Dims kDims, int kLines_>
struct Partial {
  static constexpr int kLines = kLines_;
  float at[kLines / kLineTile] = {};
};

template <int kTokens>
using TokenPartial = Partial<Dims::kTokensDepth, kTokens>;

template <int kRows>
using RowPartial = Partial<Dims::kRowsDepth, kRows>;

__device__ inline int lane() { return threadIdx.x % kWarpLanes; }
__device__ inline int lane_line() { return lane() / 4; }
__device__ inline int lane_quarter() { return threadIdx.x % 4; }
__device__ inline int warp_index() { return threadIdx.x / kWarpLanes; }

// Sums over K: the tensor-core contraction of two fragments, and the plain sum of one.

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
  unrolled<kChunks, 2, Accum<kRows, kTokens>::kTiles>([&](int c, int h, int r) {
    Vec16<T> pair[2] = {rows.at[2 * r][c], {}};
    if (2 * r + 1 < kRowLines) pair[1] = rows.at[(2 * r + 1) % kRowLines][c];
    unrolled<kTokens / kTokenTile>(
        [&](int m) { mma<T>(accum.at[r][m], pair, tokens.at[m][c], h); });
  });
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
