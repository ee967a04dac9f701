// After the loop: one thread per output element, fp32 until the store.
#pragma once

#include "tile/math/elementwise.cuh"
#include "tile/reduce/across_warps.cuh"

namespace mirage::tile {

// This block's part of an [M, N] tensor; rows are the fast dim in memory.
struct OutputTile {
  int first_row, rows, first_token, tokens;  // rows, tokens: the whole tensor's
};

// The largest divisor of kRows that is at most `most`.
template <int kRows>
__host__ __device__ constexpr int own_rows(int most) {
  return most <= 1 ? 1 : kRows % most == 0 ? most : own_rows<kRows>(most - 1);
}

// body(element) for all elements inside the tensor; neighbouring threads have neighbouring rows, so
// that accesses along N are coalesced. A thread takes several rows of one token if that leaves work
// for all threads: what depends on the token alone is then computed once.
template <int kRows, int kTokens, int kThreads, class Body>
__device__ void for_each_element(OutputTile tile, Body body) {
  constexpr int kOwn = kRowTile * kTokens < kThreads ? 1 : own_rows<kRows>(kRows / kRowTile);
  constexpr int kStride = kRows / kOwn;
  const int tokens = min(kTokens, tile.tokens - tile.first_token);
  const bool whole = tile.first_row + kRows <= tile.rows;
#pragma unroll 1
  for (int i = threadIdx.x; i < kStride * tokens; i += kThreads) {
    const Element first{i % kStride, i / kStride};
    if (whole) {
#pragma unroll
      for (int r = 0; r < kRows; r += kStride) body(Element{first.row + r, first.token});
    } else {
      for (int r = first.row; r < min(kRows, tile.rows - tile.first_row); r += kStride) {
        body(Element{r, first.token});
      }
    }
  }
}

// out[m, n] = value, converted once
template <class T>
__device__ void store(T* out, OutputTile tile, Element e, float value) {
  const int64_t token = tile.first_token + e.token;
  out[token * tile.rows + tile.first_row + e.row] = cast<T>(value);
}

// The element of an [M, N] tensor (a residual) with its own row stride; 0 if there is no tensor.
template <class T>
__device__ float load_element(const T* tensor, int64_t stride, OutputTile tile, Element e) {
  if (tensor == nullptr) return 0.0f;
  const int64_t token = tile.first_token + e.token;
  return static_cast<float>(tensor[token * stride + tile.first_row + e.row]);
}

// The element of an [N] tensor (a bias); 0 if there is no tensor.
template <class T>
__device__ float load_row(const T* tensor, OutputTile tile, Element e) {
  return tensor == nullptr ? 0.0f : static_cast<float>(tensor[tile.first_row + e.row]);
}

}  // namespace mirage::tile
