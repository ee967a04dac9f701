// The epilogue of sliced-K kernels: reductions across the warps of a block through shared memory,
// then one thread per output element, fp32 until the store.
//
// The warps share the depth, so every warp has a partial sum of every element. Each stores its fp32
// sums; after a barrier sum_over_warps adds them in the order of the warps, so that every run gives
// the same result.
#pragma once

#include "tile/math/elementwise.cuh"

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
  unrolled<kLines / kLineTile>([&](int i) {
    float sum = partial.at[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane_quarter() == 0) mine[(i * kLineTile + lane_line()) * kWarps] = sum;
  });
  return {reinterpret_cast<const float*>(shared)};
}

template <int kRows, int kTokens, int kWarps>
__device__ float sum_over_warps(AccumPartials<kRows, kTokens, kWarps> partials, Element e) {
  constexpr int kPitch = AccumPartials<kRows, kTokens, kWarps>::kPitch;
  float sum = 0.0f;
  unrolled<kWarps>([&](int w) { sum += partials.at[(w * kTokens + e.token) * kPitch + e.row]; });
  return sum;
}

template <Dims kDims, int kLines, int kWarps>
__device__ float sum_over_warps(WarpPartials<kDims, kLines, kWarps> partials, Element e) {
  const int line = kDims == Dims::kTokensDepth ? e.token : e.row;
  float sum = 0.0f;
  unrolled<kWarps>([&](int w) { sum += partials.at[line * kWarps + w]; });
  return sum;
}

// This block's tile of an [M, N] tensor; N is the fast dim in memory.
struct OutputTile {
  int first_row, rows, first_token, tokens;  // rows, tokens: of the whole tensor
};

// The largest divisor of kRows that is at most `most`.
template <int kRows>
__host__ __device__ constexpr int own_rows(int most) {
  return most <= 1 ? 1 : kRows % most == 0 ? most : own_rows<kRows>(most - 1);
}

template <int kRows, int kTokens, int kThreads>
constexpr int kRowsEach = kRowTile * kTokens < kThreads ? 1 : own_rows<kRows>(kRows / kRowTile);

// body(element) for all elements inside the tensor. Neighbouring threads have neighbouring rows, so
// that accesses along N are coalesced. A thread takes several rows of one token where that leaves
// work for all threads: it then computes per-token values once.
template <int kRows, int kTokens, int kThreads, class Body>
__device__ void for_each_element(OutputTile tile, Body body) {
  constexpr int kStride = kRows / kRowsEach<kRows, kTokens, kThreads>;
  const int tokens = min(kTokens, tile.tokens - tile.first_token);
  const bool whole = tile.first_row + kRows <= tile.rows;
#pragma unroll 1
  for (int i = threadIdx.x; i < kStride * tokens; i += kThreads) {
    const Element first{i % kStride, i / kStride};
    if (whole) {
#pragma unroll
      for (int r = 0; r < kRows; r += kStride) body(Element{first.row + r, first.token});
    } else {
#pragma unroll 1
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

// The same of a vector that has a stride: 0 for one element that all rows share.
template <class T>
__device__ float load_row(const T* tensor, int64_t stride, OutputTile tile, Element e) {
  return tensor == nullptr ? 0.0f : static_cast<float>(tensor[(tile.first_row + e.row) * stride]);
}

// An element of an optional [M] tensor, a number per token, with its stride; 0 if it is absent.
template <class T>
__device__ float load_token(const T* tensor, int64_t stride, OutputTile tile, Element e) {
  const int64_t token = tile.first_token + e.token;
  return tensor == nullptr ? 0.0f : static_cast<float>(tensor[token * stride]);
}

// What read(element) says of a thread's element where it has one at most: ask() reads it while the
// loop goes on. Where threads have several, each is read when it is wanted.
template <int kRows, int kTokens, int kThreads, class Read>
struct EarlyElement {
  static constexpr bool kOne = kRows * kTokens <= kThreads;
  static_assert(!kOne || kRowsEach<kRows, kTokens, kThreads> == 1);
  OutputTile tile;
  Read read;
  float value = 0.0f;

  __device__ void ask() {
    if constexpr (kOne) {
      const int thread = static_cast<int>(threadIdx.x);
      const Element own{thread % kRows, thread / kRows};
      const bool inside = tile.first_row + own.row < tile.rows && own.token < kTokens &&
                          tile.first_token + own.token < tile.tokens;
      if (inside) value = read(own);
    }
  }
};

// Of an optional tensor [M, N], or [N]; its stride as load_element() and load_row() have it.
template <int kRows, int kTokens, int kThreads, class T>
__device__ auto early_element(OutputTile tile, const T* tensor, int64_t stride) {
  const auto read = [=](Element e) { return load_element(tensor, stride, tile, e); };
  return EarlyElement<kRows, kTokens, kThreads, decltype(read)>{tile, read};
}
template <int kRows, int kTokens, int kThreads, class T, class... Stride>
__device__ auto early_row(OutputTile tile, const T* tensor, Stride... stride) {
  const auto read = [=](Element e) { return load_row(tensor, stride..., tile, e); };
  return EarlyElement<kRows, kTokens, kThreads, decltype(read)>{tile, read};
}

template <int kRows, int kTokens, int kThreads, class Read>
__device__ float early_value(const EarlyElement<kRows, kTokens, kThreads, Read>& early, Element e) {
  if constexpr (early.kOne) {
    return early.value;
  } else {
    return early.read(e);
  }
}

}  // namespace mirage::tile
