// Row-wise kernels: the threads of a warp or a block hold whole lines (of one token) in registers.
//
// A line is a fragment of one line, so that elementwise.cuh applies to it: which element a thread
// holds matters only to loads, sums and stores. Of a line's kThreads threads, thread t holds the
// 16-byte vectors t, t + kThreads, ...: neighbours load neighbouring vectors.
#pragma once

#include "tile/epilogue.cuh"
#include "tile/sync/dependent_launch.cuh"
#include "variants.h"

MIRAGE_SCHEDULE(RowWise)
MIRAGE_SCHEDULE(Elementwise)
MIRAGE_KNOB(Line)

namespace mirage::tile {

// Maps the vectors of a line to threads: of a warp, each warp having its own line, or of the whole
// block.
template <int kDepth, int kThreads_>
struct Lines {
  static constexpr int kThreads = kThreads_;
  static constexpr int kVectors16 = kDepth / kLaneDepth;
  static constexpr int kChunks = (kVectors16 + kThreads - 1) / kThreads;  // vectors of a thread
  static constexpr int kWarps = kThreads / kWarpLanes;

  __device__ static int vec(int c) {
    return static_cast<int>(threadIdx.x) % kThreads + c * kThreads;
  }
  __device__ static bool has(int c) { return kVectors16 % kThreads == 0 || vec(c) < kVectors16; }
};

template <class Map, class T>
using Line = Fragment<Dims::kDepth, T, 1, Map::kChunks>;

// The start of a token's line; null past the last token.
template <class T>
__device__ const T* line_of(const T* tensor, int64_t stride, int64_t token, int64_t tokens) {
  return token < tokens ? tensor + token * stride : nullptr;
}

// A thread's vectors of a line, or of none.
template <class Map, class T>
struct LineAt {
  const T* own;  // the first of them
  bool there;

  // In loads of 16 bytes; zeros if the line is not there.
  __device__ Line<Map, T> load() const {
    Line<Map, T> line;
    unrolled<Map::kChunks>([&](int c) {
      uint4 vec{};
      if (there && Map::has(c)) {
        vec = *reinterpret_cast<const uint4*>(own + c * Map::kThreads * kLaneDepth);
      }
      reinterpret_cast<uint4&>(line.at[0][c]) = vec;
    });
    return line;
  }
};

// tensor[at : at + kDepth]. Found before grid_dependency_wait(), and without asking whether there
// is such a line, all loads of a kernel are in flight together right behind that (one token, H200:
// rms_norm of 4096 1.3 us instead of 1.5, with a residual, 3584, 1.5 instead of 2.0).
template <class Map, class T>
__device__ LineAt<Map, T> line_at(const void* tensor, int64_t at = 0) {
  return {found_early(static_cast<const T*>(tensor) + at + Map::vec(0) * kLaneDepth), true};
}

// The same of a tensor that may be absent.
template <class Map, class T>
__device__ LineAt<Map, T> line_if_given(const void* tensor, int64_t at = 0) {
  return {line_at<Map, T>(tensor, at).own, tensor != nullptr};
}

// line[:]; zeros if it is null
template <class Map, class T>
__device__ Line<Map, T> load_line(const T* line) {
  return LineAt<Map, T>{line + Map::vec(0) * kLaneDepth, line != nullptr}.load();
}

// A vector at once. Of a plain store nvcc may make four, in kernels of row tiles and of cluster
// rows, and the L2 cache takes the four for writes of parts where instructions lie between them
// (H200, 134 MB: a softsign took 73 us, a sigmoid 65).
template <class T>
__device__ void store_vec16(T* to, const Vec16<T>& vec) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits(vec.pairs[0])),
               "r"(bits(vec.pairs[1])), "r"(bits(vec.pairs[2])), "r"(bits(vec.pairs[3]))
               : "memory");
}

// line[:] = value, each element converted once
template <class Map, class T, class V>
__device__ void store_line(T* line, const Line<Map, V>& value) {
  unrolled<Map::kChunks>([&](int c) {
    Vec16<T> vec;
    unrolled<kLaneDepth / 2>(
        [&](int p) { vec.pairs[p] = from_floats<T>(to_floats(value.at[0][c].pairs[p])); });
    if (Map::has(c)) store_vec16(line + Map::vec(c) * kLaneDepth, vec);
  });
}

// Division by one number for many elements: one reciprocal, exact to an fp32 rounding.
template <class Out, Dims kDims, class T, int kLines, int kChunks>
__device__ Fragment<kDims, Out, kLines, kChunks> div(const Fragment<kDims, T, kLines, kChunks>& a,
                                                     float b) {
  return mul<Out>(a, 1.0f / b);
}

// The sum of a line, the same in all its threads and in every run. Where a block holds the line,
// its warps reduce through `parts`, shared memory of this sum alone.
template <class Map, class V>
__device__ float sum_line(const Line<Map, V>& line, float* parts = nullptr) {
  float2 sums{};
  unrolled<1, Map::kChunks, kLaneDepth / 2>([&](int, int c, int p) {
    const float2 pair = to_floats(line.at[0][c].pairs[p]);
    sums.x += Map::has(c) ? pair.x : 0.0f;
    sums.y += Map::has(c) ? pair.y : 0.0f;
  });
  float sum = sums.x + sums.y;
#pragma unroll
  for (int lanes = kWarpLanes / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(~0u, sum, lanes);
  }
  if constexpr (Map::kWarps > 1) {
    if (lane() == 0) parts[warp_index()] = sum;
    __syncthreads();
    sum = 0.0f;
    unrolled<Map::kWarps>([&](int w) { sum += parts[w]; });
  }
  return sum;
}

template <int kTokens>
struct TokenTable {
  static constexpr int kBytes = kTokens * sizeof(float);
  float* at;

  __device__ static TokenTable at_bytes(char* shared) { return {reinterpret_cast<float*>(shared)}; }
};

// Calls load(token), then compute(token), for all of a block's tokens, past the last one too; then
// all threads may read what was stored. ask() loads a warp's first lines before the weights, which
// they would otherwise queue behind.
template <int kTokens, int kWarps, class Load, class Compute>
struct TokenPass {
  Load load;
  Compute compute_one;

  __device__ void ask() const {
    if (warp_index() < kTokens) load(warp_index());
  }
  __device__ void compute() const {
#pragma unroll 1
    for (int token = warp_index(); token < kTokens; token += kWarps) {
      if (token >= kWarps) load(token);
      compute_one(token);
    }
    __syncthreads();
  }
};

template <int kTokens, int kWarps, class Load, class Compute>
__device__ TokenPass<kTokens, kWarps, Load, Compute> token_pass(Load load, Compute compute) {
  return {load, compute};
}

// table[token] = value, which all lanes have
template <int kTokens>
__device__ void store_resident(TokenTable<kTokens> table, int token, float value) {
  if (lane() == 0) table.at[token] = value;
}

template <int kTokens>
__device__ float token_value(TokenTable<kTokens> table, Element e) {
  return table.at[e.token];
}

// [M] fp32: of lines 8 * i + g, as in fragments of tokens.
template <int kTokens>
struct TokenValues {
  float at[kTokens / kLineTile];
};

template <int kTokens>
__device__ TokenValues<kTokens> token_values(TokenTable<kTokens> table) {
  TokenValues<kTokens> values;
  unrolled<kTokens / kLineTile>(
      [&](int i) { values.at[i] = table.at[i * kLineTile + lane_line()]; });
  return values;
}

template <int kTokens>
__device__ float2 pair_at(const TokenValues<kTokens>& values, int i, int, int) {
  return make_float2(values.at[i], values.at[i]);
}

// As for one number (rows.cuh): a reciprocal per token.
template <class Out, class T, int kLines, int kChunks, int kTokens>
__device__ Fragment<Dims::kTokensDepth, Out, kLines, kChunks> div(
    const Fragment<Dims::kTokensDepth, T, kLines, kChunks>& a, TokenValues<kTokens> b) {
#pragma unroll
  for (float& value : b.at) value = 1.0f / value;
  return mul<Out>(a, b);
}

}  // namespace mirage::tile
