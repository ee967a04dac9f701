// Lines held whole in registers: some threads take one token, elementwise, and sum along its depth.
//
// A line is a fragment of one line, so that it has the functions of elementwise.cuh: which element
// a thread holds matters to loads, sums and stores alone. Thread t of a line's kThreads holds the
// octets t, t + kThreads, ...: neighbours load neighbouring 16 bytes.
#pragma once

#include "tile/math/elementwise.cuh"
#include "tile/sync/dependent_launch.cuh"

namespace mirage::tile {

// Who holds which octet of a line: a warp, each for itself, or the whole block.
template <int kDepth, int kThreads_>
struct Lines {
  static constexpr int kThreads = kThreads_;
  static constexpr int kVectors16 = kDepth / kLaneDepth;
  static constexpr int kChunks = (kVectors16 + kThreads - 1) / kThreads;  // octets of a thread
  static constexpr int kWarps = kThreads / kWarpLanes;

  __device__ static int octet(int c) {
    return static_cast<int>(threadIdx.x) % kThreads + c * kThreads;
  }
  __device__ static bool has(int c) { return kVectors16 % kThreads == 0 || octet(c) < kVectors16; }
};

template <class Map, class T>
using Line = Fragment<Dims::kDepth, T, 1, Map::kChunks>;

// Where the line of a token begins; no line past the last token.
template <class T>
__device__ const T* line_of(const T* tensor, int64_t stride, int64_t token, int64_t tokens) {
  return token < tokens ? tensor + token * stride : nullptr;
}

// line[:], in loads of 16 bytes; zeros if it is not there.
template <class Map, class T>
__device__ Line<Map, T> load_if(bool there, const T* line) {
  Line<Map, T> result;
#pragma unroll
  for (int c = 0; c < Map::kChunks; ++c) {
    uint4 octet{};
    if (there && Map::has(c)) {
      octet = *reinterpret_cast<const uint4*>(line + Map::octet(c) * kLaneDepth);
    }
    reinterpret_cast<uint4&>(result.at[0][c]) = octet;
  }
  return result;
}

template <class Map, class T>
__device__ Line<Map, T> load_line(const T* line) {
  return load_if<Map>(line != nullptr, line);
}

// line[:] = value, each element converted once
template <class Map, class T, class V>
__device__ void store_line(T* line, const Line<Map, V>& value) {
#pragma unroll
  for (int c = 0; c < Map::kChunks; ++c) {
    Vec16<T> octet;
#pragma unroll
    for (int p = 0; p < kLaneDepth / 2; ++p) {
      octet.pairs[p] = from_floats<T>(to_floats(value.at[0][c].pairs[p]));
    }
    if (Map::has(c)) {
      *reinterpret_cast<uint4*>(line + Map::octet(c) * kLaneDepth) =
          reinterpret_cast<const uint4&>(octet);
    }
  }
}

// Division by a number that many elements share: one reciprocal, which is exact to an fp32
// rounding.
template <class Out, Dims kDims, class T, int kLines, int kChunks>
__device__ Fragment<kDims, Out, kLines, kChunks> div(const Fragment<kDims, T, kLines, kChunks>& a,
                                                     float b) {
  return mul<Out>(a, 1.0f / b);
}

// The sum of a line, in an order of its own: the same in all its threads and in every run. Where a
// block holds the line, its warps' sums meet in `parts`, shared memory that only this sum uses.
template <class Map, class V>
__device__ float sum_line(const Line<Map, V>& line, float* parts = nullptr) {
  float2 sums{};
  for_each_pair<1, Map::kChunks>([&](int, int c, int p) {
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
#pragma unroll
    for (int w = 0; w < Map::kWarps; ++w) sum += parts[w];
  }
  return sum;
}

}  // namespace mirage::tile
