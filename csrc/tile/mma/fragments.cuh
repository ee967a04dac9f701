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

template <Dims kDims, class T, int kLines, int kChunks>
struct Fragment {
  using Element = T;
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

}  // namespace mirage::tile
