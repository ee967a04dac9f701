// The epilogue of sliced-K kernels: one thread per output element, fp32 until the store.
#pragma once

#include "tile/math/elementwise.cuh"
#include "tile/reduce/across_warps.cuh"

namespace mirage::tile {

// This block's tile of an [M, N] tensor; N is the fast dim in memory.
struct OutputTile {
  int first_row, rows, first_token, tokens;  // rows, tokens: of the whole tensor
};

// The largest divisor of kRows that is at most `most`.
template <int kRows>
__host__ __device__ constexpr int own_rows(int most) {
  return most <= 1 ? 1 : kRows % most == 0 ? most : own_rows<kRows>(most - 1);
}

// body(element) for all elements inside the tensor. Neighbouring threads have neighbouring rows, so
// that accesses along N are coalesced. A thread takes several rows of one token where that leaves
// work for all threads: it then computes per-token values once.
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

// An element of an optional [M, N] tensor (a residual) with its own row stride; 0 if it is absent.
template <class T>
__device__ float load_element(const T* tensor, int64_t stride, OutputTile tile, Element e) {
  if (tensor == nullptr) return 0.0f;
  const int64_t token = tile.first_token + e.token;
  return static_cast<float>(tensor[token * stride + tile.first_row + e.row]);
}

// An element of an optional [N] tensor (a bias); 0 if it is absent.
template <class T>
__device__ float load_row(const T* tensor, OutputTile tile, Element e) {
  return tensor == nullptr ? 0.0f : static_cast<float>(tensor[tile.first_row + e.row]);
}

}  // namespace mirage::tile
