// Vectors of neighbouring elements: read from and written to device memory, within its bounds.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tile/math/eight_bits.cuh"
#include "tile/math/elementwise.cuh"

namespace mirage::general {

constexpr int kWarpLanes = 32;

// The place of a thread in its block: so that the compiler knows its bounds.
template <int kThreads>
__device__ int thread_of() {
  return static_cast<int>(threadIdx.x % kThreads);
}

// What kernels compute with: fp32, or whole numbers as they are.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, int>, int, float>;

template <class T>
__device__ Wide<T> wide(T value) {
  return static_cast<Wide<T>>(value);
}

// The nearest value of an element type, as fp32.
template <class T>
__device__ float rounded(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {  // which is the upper half of the same number
    const __nv_bfloat162 both = __floats2bfloat162_rn(0.0f, value);
    return __uint_as_float(reinterpret_cast<const uint32_t&>(both));
  } else {
    return wide(T(value));
  }
}

__device__ inline float exp(float a) { return tile::near_exp(a); }

// -- vectors -----------------------------------------------------------------------------------

// So many neighbouring elements, loaded and stored at once.
template <class T, int kWidth, class = void>
struct alignas(sizeof(T) * kWidth <= 16 ? sizeof(T) * kWidth : 16) Vector {
  T of[kWidth];
};
// Elements of 8 bits stay together: a compiler that copies them one by one does not see words.
template <class T, int kWidth>
struct alignas(kWidth <= 16 ? kWidth : 16)
    Vector<T, kWidth, std::enable_if_t<tile::kHasEightBits<T> && kWidth % 4 == 0>> {
  union {
    uint32_t words[kWidth / 4];
    T of[kWidth];
  };
};

// An element of a vector as fp32: of bf16 one instruction, where the half by itself takes two.
template <int kWidth, class T>
__device__ Wide<T> wide(const Vector<T, kWidth>& from, int i) {
  if constexpr (std::is_same_v<T, __nv_bfloat16> && kWidth % 2 == 0) {
    const uint32_t both = reinterpret_cast<const uint32_t*>(&from)[i / 2];
    return __uint_as_float(i % 2 == 0 ? both << 16 : both & 0xffff0000u);
  } else if constexpr (tile::kHasEightBits<T> && kWidth % 4 == 0) {
    const float2 both = tile::pair_of<T>(from.words[i / 4], i % 4 / 2);
    return i % 2 == 0 ? both.x : both.y;
  } else {
    return wide(from.of[i]);
  }
}

template <int kWidth, class T>
__device__ void widened(Vector<T, kWidth> from, Wide<T> (&to)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) to[i] = wide(from, i);
}

template <int kWidth, class T>
__device__ void read(const T* from, Wide<T> (&to)[kWidth]) {
  const auto loaded = *reinterpret_cast<const Vector<T, kWidth>*>(from);
  widened(loaded, to);
}

// How far an index, 0 or more, is along a dim: strides of aligned tensors are ints.
template <bool kAligned>
__device__ int64_t along(int index, int64_t stride) {
  return kAligned ? int64_t(index) * static_cast<int>(stride) : index * stride;
}

// A vector, NaN where there is no row that it could be of.
template <class T, int kWidth>
__device__ Vector<T, kWidth> or_nan(Vector<T, kWidth> made, int64_t row) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) made.of[i] = row < 0 ? T(NAN) : made.of[i];
  return made;
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

// The row that a number says; -1 where it is none of the `rows`, or not wanted. Negative numbers
// count from the last row if it `kWraps`.
template <bool kWraps>
__device__ int64_t row_within(int64_t given, bool wanted, int64_t rows) {
  const int64_t row = kWraps && given < 0 ? given + rows : given;
  return wanted && row >= 0 && row < rows ? row : -1;
}

// The row of a tensor that an index tensor says at `index`. Like other reads it is under way while
// threads go on, as nothing here decides where they go.
template <bool kWraps, class Index>
__device__ int64_t row_of(const Index* index, bool wanted, int64_t rows) {
  return row_within<kWraps>(read_if<1>(index, wanted).of[0], wanted, rows);
}

// The same of an index tensor whose numbers have 4 or 8 bytes.
template <bool kWraps>
__device__ int64_t row_of(const void* index, int64_t at, int bytes, bool wanted, int64_t rows) {
  const bool wide = bytes == 8;
  const auto* eights = static_cast<const int64_t*>(index) + at;
  const int64_t large = read_if<1>(eights, wanted && wide).of[0];
  const int small = read_if<1>(static_cast<const int*>(index) + at, wanted && !wide).of[0];
  return row_within<kWraps>(wide ? large : small, wanted, rows);
}

// How far a row is that lies in pages of so many rows; anything where there is no row.
__device__ inline int64_t in_pages(int64_t row, int rows, int64_t page_stride, int64_t row_stride) {
  const uint32_t page = static_cast<uint32_t>(row) / static_cast<uint32_t>(rows);
  return page * page_stride + (static_cast<uint32_t>(row) - page * rows) * row_stride;
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

// A vector of a row that begins anywhere: the aligned words that hold it, as memory has them.
template <class T, int kWidth>
struct Uneven {
  static constexpr int kBytes = sizeof(T) * kWidth, kEach = kBytes < 16 ? kBytes : 16;  // a word
  static constexpr int kParts = (kBytes + kEach) / 4;  // of 4 bytes, of one word more than needed
  uint32_t of[kParts];
  uint32_t first;  // bytes of the words that lie before the elements
  int left;        // elements that are within the tensor's extents
};

// Such a vector within a row; `end`: of the tensor. Words that hold nothing of it are not read, nor
// words that reach beyond the end: what lies in those is read one by one.
template <int kWidth, bool kAligned, class T>
__device__ Uneven<T, kWidth> read_uneven(const T* from, int64_t stride, int64_t left,
                                         const void* end) {
  using Made = Uneven<T, kWidth>;
  static_assert(Made::kBytes >= 4 && (sizeof(T) == 2 || sizeof(T) == 4));
  constexpr int kEach = Made::kEach, kEachParts = kEach / 4;
  Made made;
  made.first = 0, made.left = static_cast<int>(left);
  if constexpr (kAligned) {
    const int count = left < kWidth ? static_cast<int>(left) : kWidth;
    const auto last = reinterpret_cast<uintptr_t>(from + count) + 15 & ~uintptr_t{15};
    const bool whole = left <= 0 || last <= reinterpret_cast<uintptr_t>(end);
    made.first = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) % kEach);
    const uint32_t bytes = whole && left > 0 ? made.first + count * uint32_t(sizeof(T)) : 0;
    const auto at =
        reinterpret_cast<const uint32_t*>(reinterpret_cast<uintptr_t>(from) - made.first);
#pragma unroll
    for (int i = 0; i < Made::kParts; i += kEachParts) {
      const auto word = read_if<kEachParts>(at + i, 4 * i < bytes);
#pragma unroll
      for (int j = 0; j < kEachParts; ++j) made.of[i + j] = word.of[j];
    }
    if (whole) return made;
    made.first = 0;
  }
  constexpr int kIn = 4 / sizeof(T);
#pragma unroll
  for (int i = 0; i < kWidth / kIn; ++i) {
    union {
      T elements[kIn];
      uint32_t part;
    } both;
#pragma unroll
    for (int j = 0; j < kIn; ++j) {
      const int e = i * kIn + j;
      both.elements[j] = read_if<1>(from + e * stride, e < left).of[0];
    }
    made.of[i] = both.part;
  }
  return made;
}

// The elements, shifted out of their words, zeros beyond the tensor's extents.
template <class T, int kWidth>
__device__ Vector<T, kWidth> shifted(const Uneven<T, kWidth>& words) {
  using Given = Uneven<T, kWidth>;
  union {
    uint32_t of[Given::kParts];
    Vector<T, kWidth> vector;
  } made;
#pragma unroll
  for (int i = 0; i < Given::kParts; ++i) made.of[i] = words.of[i];
#pragma unroll
  for (int far = 2; far > 0; far /= 2)
    if (4 * far < Given::kEach)
#pragma unroll
      for (int i = 0; i + far < Given::kParts; ++i)
        made.of[i] = words.first & 4 * far ? made.of[i + far] : made.of[i];
  if constexpr (sizeof(T) == 2)
#pragma unroll
    for (int i = 0; i < Given::kBytes / 4; ++i)
      made.of[i] = __funnelshift_r(made.of[i], made.of[i + 1], 8 * words.first % 32);
  if (words.left >= kWidth) return made.vector;
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if (i >= words.left) made.vector.of[i] = T(0.0f);
  return made.vector;
}

// A number as a tensor has it: of 8 bits as PyTorch rounds, what is too large for fp8 is NaN.
template <class T>
__device__ T stored(float value) {
  if constexpr (std::is_same_v<T, __nv_fp8_e4m3> || std::is_same_v<T, __nv_fp8_e5m2>) {
    constexpr auto kKind = std::is_same_v<T, __nv_fp8_e4m3> ? __NV_E4M3 : __NV_E5M2;
    T made;
    made.__x = __nv_cvt_float_to_fp8(value, __NV_NOSAT, kKind);
    return made;
  } else {
    return T(value);
  }
}

// Rounded elements as a vector.
template <class T, int kWidth>
__device__ Vector<T, kWidth> narrowed(const float (&from)[kWidth]) {
  Vector<T, kWidth> made;
  if constexpr (sizeof(T) == 2 && kWidth % 2 == 0) {  // one instruction rounds two numbers
#pragma unroll
    for (int i = 0; i < kWidth; i += 2)
      reinterpret_cast<tile::Pair<T>&>(made.of[i]) =
          tile::from_floats<T>(make_float2(from[i], from[i + 1]));
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) made.of[i] = stored<T>(from[i]);
  }
  return made;
}

template <int kWidth, class T>
__device__ void write(T* to, const float (&from)[kWidth]) {
  *reinterpret_cast<Vector<T, kWidth>*>(to) = narrowed<T>(from);
}

// A vector to device memory, where it is wanted. Left to itself the compiler stores some of them
// pair by pair.
template <int kWidth, class T>
__device__ void write_if(T* to, const Vector<T, kWidth>& from, bool wanted) {
  constexpr int kBytes = sizeof(T) * kWidth;
  if constexpr (kBytes % 16 == 0) {
    const auto* words = reinterpret_cast<const uint32_t*>(&from);
    const int store = wanted;
#pragma unroll
    for (int i = 0; i < kBytes / 4; i += 4)
      asm volatile(
          "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.v4.u32 [%0], {%1, %2, %3, %4}; }" ::
              "l"(reinterpret_cast<uint32_t*>(to) + i),
          "r"(words[i]), "r"(words[i + 1]), "r"(words[i + 2]), "r"(words[i + 3]), "r"(store)
          : "memory");
  } else if (wanted) {
    *reinterpret_cast<Vector<T, kWidth>*>(to) = from;
  }
}

template <int kWidth, bool kAligned, class T>
__device__ void write_within(T* to, int64_t stride, int64_t left, const float (&from)[kWidth]) {
  if constexpr (kAligned) {
    const bool whole = stride == 1 && left >= kWidth;
    write_if(to, narrowed<T>(from), whole);
    if (whole || left <= 0) return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i)
    if (i < left) to[i * stride] = stored<T>(from[i]);
}

}  // namespace mirage::general
