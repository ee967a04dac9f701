// What general kernels are written in: statements of a thread block over tiles in shared memory,
// built on CuTe's layouts, asynchronous copies, ldmatrix and mma atoms.
//
// Every function is called by all threads of the block. None has a barrier but where it says so.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>
#include <cute/layout.hpp>

#include "general/each.cuh"
#include "general/reductions.cuh"

namespace mirage::general {

using namespace cute;

// -- statements --------------------------------------------------------------------------------

// 16 bytes to shared memory, without waiting: zeros where they are not wanted.
__device__ inline void copy_16_bytes(void* to, const void* from, bool wanted) {
  SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>::copy(*static_cast<const uint128_t*>(from),
                                                   *static_cast<uint128_t*>(to), wanted);
}
__device__ inline void copy_4_bytes(void* to, const void* from, bool wanted) {
  SM80_CP_ASYNC_CACHEALWAYS_ZFILL<uint32_t>::copy(*static_cast<const uint32_t*>(from),
                                                  *static_cast<uint32_t*>(to), wanted);
}

// A vector of a tensor to shared memory, zeros behind `left` elements. Of four bytes each it does
// not wait for them either.
template <int kWidth, bool kAligned, class T>
__device__ void load_elements(T* to, const T* from, int64_t stride, int left) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if constexpr (sizeof(T) == 4)
      copy_4_bytes(to + i, from + i * stride, i < left);
    else
      to[i] = read_if<1>(from + i * stride, i < left).of[0];
}
// Of a mask, as numbers.
template <int kWidth, bool kAligned, class T>
__device__ void load_elements(T* to, const bool* from, int64_t stride, int left) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) to[i] = T(wide(read_if<1>(from + i * stride, i < left).of[0]));
}
template <int kWidth, bool kAligned, class T>
__device__ void load_vector(T* to, const T* from, int64_t stride, int left) {
  if (kAligned && stride == 1 && (left >= kWidth || left <= 0))
    copy_16_bytes(to, from, left > 0);
  else
    load_elements<kWidth, false>(to, from, stride, left);
}

// kRows rows of kVectors vectors each to shared memory, kPitch elements apart; `stride` apart in
// the tensor, where at(row, column) says what there is from a place of a row on.
template <bool kAligned, int kThreads, int kVectors, int kRows, int kPitch, class T, class At>
__device__ void load_rows(T* to, int64_t stride, At at) {
  constexpr int kWidth = 16 / sizeof(T), kAtOnce = kThreads / kVectors;
  const int thread = thread_of<kThreads>(), row = thread / kVectors;
  const int column = thread % kVectors * kWidth;
  const int64_t hop = along<kAligned>(kAtOnce, stride);
  const T* from = at(row, column).from;
  to += row * kPitch + column;
#pragma unroll
  for (int base = 0; base < kRows; base += kAtOnce) {
    if (kRows % kAtOnce != 0 && base + row >= kRows) break;
    const Row<T> own = at(base + row, column);
    load_vector<kWidth, kAligned>(to + base * kPitch, from, own.stride, own.left);
    from += hop;
  }
}

// -- products on tensor cores ------------------------------------------------------------------

__device__ inline void mma(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                           __half) {
  SM80_16x8x16_F32F16F16F32_TN::fma(sums[0], sums[1], sums[2], sums[3], a[0], a[1], a[2], a[3],
                                    b[0], b[1], sums[0], sums[1], sums[2], sums[3]);
}
__device__ inline void mma(float (&sums)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                           __nv_bfloat16) {
  SM80_16x8x16_F32BF16BF16F32_TN::fma(sums[0], sums[1], sums[2], sums[3], a[0], a[1], a[2], a[3],
                                      b[0], b[1], sums[0], sums[1], sums[2], sums[3]);
}

// Four 8 x 8 matrices: each lane gives the place of one row, and gets two elements of each matrix.
template <bool kTurned>
__device__ void load_matrices(const void* from, uint32_t& a, uint32_t& b, uint32_t& c,
                              uint32_t& d) {
  const auto& row = *static_cast<const uint128_t*>(from);
  if constexpr (kTurned)
    SM75_U16x8_LDSM_T::copy(row, a, b, c, d);
  else
    SM75_U32x4_LDSM_N::copy(row, a, b, c, d);
}
template <bool kTurned>
__device__ void load_matrices(const void* from, uint32_t& a, uint32_t& b) {
  const auto& row = *static_cast<const uint128_t*>(from);
  if constexpr (kTurned)
    SM75_U16x4_LDSM_T::copy(row, a, b);
  else
    SM75_U32x2_LDSM_N::copy(row, a, b);
}

// A row or column of a sum: what a lane decides, below 8, and the rest, a multiple of 8.
struct Line {
  int lane, rest;
  __device__ operator int() const { return lane + rest; }
};

// The coordinate along a dim of kSize, kStep lines apart (kSize 0: the outermost), of lines that
// several dims share. Most of it is known at compile time, or the same for all of a thread's sums.
template <int kStep, int kSize>
__device__ int coordinate(Line line) {
  constexpr bool kOutermost = kSize == 0;
  constexpr int kLines = kStep * kSize;  // after which it begins anew
  const auto within = [](int n) {
    if constexpr (kOutermost)
      return n;
    else
      return n % kSize;
  };
  if constexpr (kStep % 8 == 0)
    return within(line.rest / kStep);
  else if constexpr (kLines == 1 || kLines == 2 || kLines == 4 || kLines == 8)
    return within(line.lane / kStep);
  else if constexpr (8 % kStep == 0 && kLines % 8 == 0)
    return line.lane / kStep + within(line.rest / kStep);
  else
    return within(line / kStep);
}

// rows x columns of fp32 sums in registers, made by kRowWarps x kColumnWarps of the block's warps.
template <class T, int kRows, int kColumns, int kRowWarps, int kColumnWarps, int kThreads>
struct Product {
  static_assert(kRows % (16 * kRowWarps) == 0 && kColumns % (8 * kColumnWarps) == 0);
  static constexpr int kRowTiles = kRows / 16 / kRowWarps;
  static constexpr int kColumnTiles = kColumns / 8 / kColumnWarps;

  float sums[kRowTiles][kColumnTiles][4];

  static __device__ int warp() { return thread_of<kThreads>() / kWarpLanes; }
  static __device__ int lane() { return thread_of<kWarpLanes>(); }
  static __device__ bool takes_part() {
    return kRowWarps * kColumnWarps * kWarpLanes >= kThreads || warp() < kRowWarps * kColumnWarps;
  }
  static __device__ int row() { return warp() % kRowWarps * kRowTiles * 16; }
  static __device__ int column() { return warp() / kRowWarps * kColumnTiles * 8; }

  __device__ void clear() {
    every([](float& sum, Line, Line) { sum = 0.0f; });
  }

  // sums += a b^T over `depth`, of tiles a [rows, depth] and b [columns, depth] in shared memory
  // with CuTe layouts. Turned ones are contiguous along their rows.
  template <int kDepth, bool kTurnedA, bool kTurnedB, class A, class B>
  __device__ void add(const T* a_at, A a, const T* b_at, B b) {
    if (!takes_part()) return;
    const int eight = lane() / 8, line = lane() % 8;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t a_regs[kRowTiles][4], b_regs[kColumnTiles][2];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const int r = row() + 16 * i + eight % 2 * 8, d = k + eight / 2 * 8;
        const T* from = a_at + (kTurnedA ? a(r, d + line) : a(r + line, d));
        load_matrices<kTurnedA>(from, a_regs[i][0], a_regs[i][1], a_regs[i][2], a_regs[i][3]);
      }
#pragma unroll
      for (int j = 0; j + 1 < kColumnTiles; j += 2) {
        const int c = column() + 8 * j + eight / 2 * 8, d = k + eight % 2 * 8;
        const T* from = b_at + (kTurnedB ? b(c, d + line) : b(c + line, d));
        load_matrices<kTurnedB>(from, b_regs[j][0], b_regs[j][1], b_regs[j + 1][0],
                                b_regs[j + 1][1]);
      }
      if constexpr (kColumnTiles % 2 == 1) {
        constexpr int j = kColumnTiles - 1;
        const int c = column() + 8 * j, d = k + eight % 2 * 8;
        const T* from = b_at + (kTurnedB ? b(c, d + line) : b(c + line, d));
        load_matrices<kTurnedB>(from, b_regs[j][0], b_regs[j][1]);
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) mma(sums[i][j], a_regs[i], b_regs[j], T());
    }
  }

  // The lines of sum `c` of the four that one mma makes.
  static __device__ Line row_of(int i, int c) { return {lane() / 4, row() + 16 * i + c / 2 * 8}; }
  static __device__ Line column_of(int j, int c) {
    return {lane() % 4 * 2 + c % 2, column() + 8 * j};
  }

  // change(sum, row, column) for each sum of a thread.
  template <class Do>
  __device__ void every(Do change) {
    if (!takes_part()) return;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) change(sums[i][j][c], row_of(i, c), column_of(j, c));
  }

  // store(warp, column, joined) for every column: what value(sum, row, column) of the rows that a
  // warp has joins to, `warp` numbering those that share the rows.
  template <class Op, class Value, class Store>
  __device__ void join_rows(Value value, Store store) {
    if (!takes_part()) return;
    float joined[2 * kColumnTiles];
#pragma unroll
    for (int k = 0; k < 2 * kColumnTiles; ++k) joined[k] = Op::kIdentity;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          float& to = joined[2 * j + c % 2];
          to = Op::join(to, value(sums[i][j][c], row_of(i, c), column_of(j, c)));
        }
    join_lanes_of<Op, 2 * kColumnTiles, kWarpLanes / 2>(joined, 0, true, store);
  }

 private:
  // Joins columns of lanes `kFar` apart and nearer, down to those four apart. Each of the two goes
  // on with half of the columns while there are some: from `first` on. Lanes that are `mine` store.
  template <class Op, int kCount, int kFar, class Store>
  static __device__ void join_lanes_of(float* joined, int first, bool mine, Store store) {
    if constexpr (kFar < 4) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int j = (first + k) / 2, c = (first + k) % 2;
        if (mine) store(warp() % kRowWarps, column_of(j, c), joined[k]);
      }
    } else {
      const bool upper = lane() & kFar;
      constexpr bool kHalves = kCount % 2 == 0;
      constexpr int kLeft = kHalves ? kCount / 2 : kCount;
#pragma unroll
      for (int k = 0; k < kLeft; ++k) {
        const float sent = kHalves && !upper ? joined[(k + kLeft) % kCount] : joined[k];
        const float kept = kHalves && upper ? joined[(k + kLeft) % kCount] : joined[k];
        joined[k] = Op::join(kept, __shfl_xor_sync(~0u, sent, kFar));
      }
      join_lanes_of<Op, kLeft, kFar / 2>(joined, kHalves && upper ? first + kLeft : first,
                                         mine && (kHalves || !upper), store);
    }
  }
};

// -- clusters ----------------------------------------------------------------------------------

__device__ inline void cluster_barrier() {
  cute::cluster_arrive();
  cute::cluster_wait();
}
__device__ inline int cluster_rank() { return static_cast<int>(cute::block_rank_in_cluster()); }

// The number at the same place of another block's shared memory.
__device__ inline float of_block(const float* mine, int rank) {
  const uint32_t here = static_cast<uint32_t>(__cvta_generic_to_shared(mine));
  float value;
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there));
  return value;
}

// Reads of other blocks that are under way at once: all of a portable cluster.
constexpr int kReadAtOnce = kMostBlocks;

template <class Op>
__device__ float combine(const float* mine) {
  const int blocks = cute::cluster_shape().x;
  float joined = Op::kIdentity;
#pragma unroll 1
  for (int first = 0; first < blocks; first += kReadAtOnce) {
    float read[kReadAtOnce];
#pragma unroll
    for (int b = 0; b < kReadAtOnce; ++b)
      read[b] = first + b < blocks ? of_block(mine, first + b) : Op::kIdentity;
#pragma unroll
    for (int b = 0; b < kReadAtOnce; ++b) joined = Op::join(joined, read[b]);
  }
  return joined;
}

__device__ inline float combine_rescaled(const float* mine, const float* peak) {
  const int blocks = cute::cluster_shape().x;
  float top = -INFINITY, sum = 0.0f;
#pragma unroll 1
  for (int first = 0; first < blocks; first += kReadAtOnce) {
    float read[kReadAtOnce], peaks[kReadAtOnce];
#pragma unroll
    for (int b = 0; b < kReadAtOnce; ++b) {
      peaks[b] = first + b < blocks ? of_block(peak, first + b) : -INFINITY;
      read[b] = first + b < blocks ? of_block(mine, first + b) : 0.0f;
    }
    const float before = top;
#pragma unroll
    for (int b = 0; b < kReadAtOnce; ++b) top = fmaxf(top, peaks[b]);
    sum *= exp(before - top);
#pragma unroll
    for (int b = 0; b < kReadAtOnce; ++b) sum += read[b] * exp(peaks[b] - top);
  }
  return sum;
}

// do_one(i) for the share of kCount that this block of its cluster has: blocks take turns, kBeside
// of them at a time.
template <int kThreads, int kCount, int kBeside, class Do>
__device__ void each_dealt(Do do_one) {
  static_assert(kCount % kBeside == 0);
  const int blocks = cute::cluster_shape().x, rank = cluster_rank();
  for (int mine = thread_of<kThreads>();; mine += kThreads) {
    const int i = (mine / kBeside * blocks + rank) * kBeside + mine % kBeside;
    if (i >= kCount) break;
    do_one(i);
  }
}

// The same in two parts: take(i, taken), then use(i, taken).
template <class Taken, int kThreads, int kCount, int kBeside, class Take, class Use>
__device__ void each_taken_dealt(Take take, Use use) {
  each_dealt<kThreads, kCount, kBeside>([&](int i) {
    Taken taken;
    take(i, taken);
    use(i, taken);
  });
}

}  // namespace mirage::general
