// Vectors of neighbouring elements: read from and written to device memory, within its bounds.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tile/math/elementwise.cuh"

namespace mirage::general {

constexpr int kWarpLanes = 32;

template <class T>
__device__ float wide(T value) {
  return static_cast<float>(value);
}

__device__ inline float exp(float a) { return tile::near_exp(a); }

// -- vectors -----------------------------------------------------------------------------------

// So many neighbouring elements, loaded and stored at once.
template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth <= 16 ? sizeof(T) * kWidth : 16) Vector {
  T of[kWidth];
};

template <int kWidth, class T>
__device__ void widened(Vector<T, kWidth> from, float (&to)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) to[i] = wide(from.of[i]);
}

template <int kWidth, class T>
__device__ void read(const T* from, float (&to)[kWidth]) {
  const auto loaded = *reinterpret_cast<const Vector<T, kWidth>*>(from);
  widened(loaded, to);
}

template <int kWidth, class T>
__device__ void write(T* to, const float (&from)[kWidth]) {
  Vector<T, kWidth> made;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) made.of[i] = T(from[i]);
  *reinterpret_cast<Vector<T, kWidth>*>(to) = made;
}

// How far an index, 0 or more, is along a dim: strides of aligned tensors are ints.
template <bool kAligned>
__device__ int64_t along(int index, int64_t stride) {
  return kAligned ? int64_t(index) * static_cast<int>(stride) : index * stride;
}

// The row of a tensor that an index tensor says at `index`; -1 where it is none of the `rows`, or
// not wanted. Negative numbers count from the last row if it `kWraps`.
template <bool kWraps, class Index>
__device__ int64_t row_of(const Index* index, bool wanted, int64_t rows) {
  if (!wanted) return -1;
  const int64_t given = *index;
  const int64_t row = kWraps && given < 0 ? given + rows : given;
  return row >= 0 && row < rows ? row : -1;
}

// A vector of a tensor in device memory, zeros where it is not wanted. The compiler keeps such
// reads in front of what uses them, so that they are under way at once.
template <int kWidth, class T>
__device__ Vector<T, kWidth> read_if(const T* from, bool wanted) {
  constexpr int kBytes = sizeof(T) * kWidth, kWords = kBytes < 4 ? 1 : kBytes / 4;
  union {
    uint16_t half;
    uint32_t words[kWords];
    Vector<T, kWidth> vector;
  } made;
  const int take = wanted;
  if constexpr (kBytes == 1) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; mov.u16 %0, 0; @p ld.global.u8 %0, [%1]; }"
                 : "=h"(made.half)
                 : "l"(from), "r"(take));
  } else if constexpr (kBytes == 2) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; mov.u16 %0, 0; @p ld.global.u16 %0, [%1]; }"
                 : "=h"(made.half)
                 : "l"(from), "r"(take));
  } else if constexpr (kBytes == 4) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; mov.u32 %0, 0; @p ld.global.u32 %0, [%1]; }"
                 : "=r"(made.words[0])
                 : "l"(from), "r"(take));
  } else if constexpr (kBytes == 8) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;"
        " @p ld.global.v2.u32 {%0, %1}, [%2]; }"
        : "=r"(made.words[0]), "=r"(made.words[1])
        : "l"(from), "r"(take));
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      asm volatile(
          "{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0;"
          " mov.u32 %3, 0; @p ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
          : "=r"(made.words[i]), "=r"(made.words[i + 1]), "=r"(made.words[i + 2]),
            "=r"(made.words[i + 3])
          : "l"(reinterpret_cast<const uint32_t*>(from) + i), "r"(take));
  }
  return made.vector;
}

// The elements of a tensor in device memory that lie within its extents, the others zeros.
// `left` says how many from the first one on are within.
template <int kWidth, bool kAligned, class T>
__device__ Vector<T, kWidth> read_within(const T* from, int64_t stride, int64_t left) {
  Vector<T, kWidth> made;
  if constexpr (kAligned) {
    made = read_if<kWidth>(from, left >= kWidth);
    if (left <= 0 || left >= kWidth) return made;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) made.of[i] = read_if<1>(from + i * stride, i < left).of[0];
  return made;
}

// A vector of a row that begins anywhere: the two aligned words of 16 bytes that hold it, and how
// many bytes it is shifted in them. Behind the end of its row is what lies there.
template <class T, int kWidth>
struct Uneven {
  static_assert(sizeof(T) == 2 && sizeof(T) * kWidth == 16);
  Vector<T, kWidth> words[2];
  int shift;
};

// Such a vector within a row; `end`: of the tensor. Words that reach beyond it are not read.
template <int kWidth, bool kAligned, class T>
__device__ Uneven<T, kWidth> read_uneven(const T* from, int64_t stride, int64_t left,
                                         const void* end) {
  Uneven<T, kWidth> made{};
  if constexpr (kAligned) {
    const auto at = reinterpret_cast<uintptr_t>(from), low = at & ~uintptr_t{15};
    const bool whole = left > 0 && low + 32 <= reinterpret_cast<uintptr_t>(end);
    made.words[0] = read_if<kWidth>(reinterpret_cast<const T*>(low), whole);
    made.words[1] = read_if<kWidth>(reinterpret_cast<const T*>(low) + kWidth, whole);
    made.shift = static_cast<int>(at & 15);
    if (left <= 0 || whole) return made;
    made.shift = 0;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    made.words[0].of[i] = read_if<1>(from + i * stride, i < left).of[0];
  return made;
}

template <class T, int kWidth>
__device__ Vector<T, kWidth> shifted(const Uneven<T, kWidth>& from) {
  const auto& words = reinterpret_cast<const uint32_t(&)[8]>(from.words);
  uint32_t by_eight[6], by_four[5];
  union {
    uint32_t words[4];
    Vector<T, kWidth> vector;
  } made;
#pragma unroll
  for (int i = 0; i < 6; ++i) by_eight[i] = from.shift & 8 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) by_four[i] = from.shift & 4 ? by_eight[i + 1] : by_eight[i];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    made.words[i] = __funnelshift_r(by_four[i], by_four[i + 1], (from.shift & 2) * 8);
  return made.vector;
}

template <int kWidth, bool kAligned, class T>
__device__ void write_within(T* to, int64_t stride, int64_t left, const float (&from)[kWidth]) {
  if (kAligned && stride == 1 && left >= kWidth) return write(to, from);
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if (i < left) to[i * stride] = T(from[i]);
}

}  // namespace mirage::general
