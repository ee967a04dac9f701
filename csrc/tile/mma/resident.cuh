// Resident operands: tiles that lie whole in shared memory, and their products after the loop.
//
// Each block computes a second product, of a weight with the first product's results, for its own
// rows: it fetches the weight's tile when the kernel starts and stores the results as soon as they
// are known.
#pragma once

#include "tile/copy/predicated.cuh"
#include "tile/epilogue.cuh"

namespace mirage::tile {

constexpr int kMmaDepth = 16;  // k of one mma

// [kLines, kDepth]; the pitch is an odd number of 16-byte vectors, so that neighbouring lines begin
// in different banks.
template <class T, int kLines, int kDepth>
struct Resident {
  static constexpr int kPitch = (kDepth / kLaneDepth | 1) * kLaneDepth;
  static constexpr int kBytes = (kLines * kPitch * static_cast<int>(sizeof(T)) + 127) / 128 * 128;
  char* shared;

  __device__ T* at(int line, int k) const {
    return reinterpret_cast<T*>(shared) + line * kPitch + k;
  }
};

// resident[line, :] = tensor[first_line + line, :], asynchronously, by kThreads threads. Lines past
// the tensor's last read as zero. A thread sees its own copies after wait_copies, those of others
// after a barrier.
template <int kThreads, class T, int kLines, int kDepth>
__device__ void fetch(Resident<T, kLines, kDepth> resident, const T* tensor, int first_line,
                      int lines) {
  constexpr int kVectors16 = kDepth / kLaneDepth;
  const T* first = tensor + static_cast<int64_t>(first_line) * kDepth;
#pragma unroll 1
  for (int i = threadIdx.x % kThreads; i < kLines * kVectors16; i += kThreads) {
    const int line = i / kVectors16, k = i % kVectors16 * kLaneDepth;
    copy_16_bytes<Cache::kStream>(reinterpret_cast<char*>(resident.at(line, k)),
                                  first + line * kDepth + k, first_line + line < lines);
  }
}

// resident[token, row] = value, converted once
template <class T, int kTokens, int kDepth>
__device__ void store_resident(Resident<T, kTokens, kDepth> resident, Element e, float value) {
  *resident.at(e.token, e.row) = cast<T>(value);
}

// A lane's four k of one line, as the first half of a vector. Which four does not matter as long as
// both operands agree.
template <class T, int kLines, int kDepth>
__device__ Vec16<T> load_quartet(Resident<T, kLines, kDepth> resident, int line, int first_k) {
  Vec16<T> found{};
  const int k = first_k + lane_quarter() * 4;
  if (kDepth % kMmaDepth == 0 || k < kDepth) {
    reinterpret_cast<uint2&>(found) = *reinterpret_cast<const uint2*>(resident.at(line, k));
  }
  return found;
}

// products[n, m] = sums, from the lanes' accumulators.
template <int kRows, int kTiles, int kRowTiles>
__device__ void publish_products(float* products, const float (&sums)[kTiles][kRowTiles][4]) {
  constexpr int kPitch = AccumPartials<kRows, kTiles * kTokenTile, 1>::kPitch;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = m * kTokenTile + lane_quarter() * 2 + j % 2;
        const int row = r * kRowTile + lane_line() + j / 2 * kLineTile;
        products[token * kPitch + row] = sums[m][r][j];
      }
    }
  }
}

// products[n, m] = sum over k of rows[n, k] * tokens[m, k]: the warps share the output tiles.
template <int kWarps, class T, int kRows, int kTokens, int kDepth>
__device__ AccumPartials<kRows, kTokens, 1> contract_resident(char* shared,
                                                              Resident<T, kRows, kDepth> rows,
                                                              Resident<T, kTokens, kDepth> tokens) {
  constexpr int kPitch = AccumPartials<kRows, kTokens, 1>::kPitch;
  constexpr int kRowTiles = kRows / kRowTile, kTiles = kRowTiles * (kTokens / kTokenTile);
  float* products = reinterpret_cast<float*>(shared);
#pragma unroll 1
  for (int i = warp_index(); i < kTiles; i += kWarps) {
    const int row = i % kRowTiles * kRowTile + lane_line(), token = i / kRowTiles * kTokenTile;
    float sum[4] = {};
#pragma unroll
    for (int k = 0; k < kDepth; k += kMmaDepth) {
      const Vec16<T> pair[2] = {load_quartet(rows, row, k), load_quartet(rows, row + kLineTile, k)};
      mma<T>(sum, pair, load_quartet(tokens, token + lane_line(), k), 0);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int to_token = token + lane_quarter() * 2 + j % 2;
      products[to_token * kPitch + row + j / 2 * kLineTile] = sum[j];
    }
  }
  return {products};
}

// The same by `warp` of kWarps, for some of the tokens. It computes several tiles at a time: one
// after the other took one warp 2 us.
template <int kWarps = 1, class T, int kRows, int kTokens, int kDepth>
__device__ void contract_in_one_warp(char* shared, Resident<T, kRows, kDepth> rows,
                                     Resident<T, kTokens, kDepth> tokens, int warp = 0) {
  constexpr int kRowTiles = kRows / kRowTile, kTokenTiles = kTokens / kTokenTile / kWarps;
  static_assert(kTokens % (kTokenTile * kWarps) == 0);
  constexpr int kTogether = kRowTiles <= 2 && kTokenTiles % 4 == 0   ? 4
                            : kRowTiles <= 4 && kTokenTiles % 2 == 0 ? 2
                                                                     : 1;
  constexpr int kPitch = AccumPartials<kRows, kTokens, 1>::kPitch;
  float* products = reinterpret_cast<float*>(shared);
#pragma unroll 1
  for (int i = 0; i < kTokenTiles; i += kTogether) {
    const int first = warp * kTokenTiles + i;
    float sums[kTogether][kRowTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kDepth; k += kMmaDepth) {
      Vec16<T> few[kTogether];
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        few[m] = load_quartet(tokens, (first + m) * kTokenTile + lane_line(), k);
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const int row = r * kRowTile + lane_line();
        const Vec16<T> pair[2] = {load_quartet(rows, row, k),
                                  load_quartet(rows, row + kLineTile, k)};
#pragma unroll
        for (int m = 0; m < kTogether; ++m) mma<T>(sums[m][r], pair, few[m], 0);
      }
    }
    publish_products<kRows>(products + first * kTokenTile * kPitch, sums);
  }
}

}  // namespace mirage::tile
