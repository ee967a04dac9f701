// Numbers of 8 bits, of which a word has four, as fp32: exact, as they are in fp16 and bf16.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace mirage::tile {

template <class T>
constexpr bool kHasEightBits = sizeof(T) == 1 && !std::is_same_v<T, bool>;

// 2^23 and a byte as a number: the byte is the last one of its bits. A permutation and a
// subtraction take the place of a conversion.
__device__ inline float behind_2_to_23(uint32_t word, int i) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540 + i));
}

// Bytes 2 h and 2 h + 1.
template <class T>
__device__ float2 pair_of(uint32_t word, int h) {
  static_assert(kHasEightBits<T>);
  if constexpr (std::is_same_v<T, int8_t>) {
    const uint32_t raised = word ^ 0x80808080u;
    return make_float2(behind_2_to_23(raised, 2 * h) - (0x1p23f + 128.0f),
                       behind_2_to_23(raised, 2 * h + 1) - (0x1p23f + 128.0f));
  } else if constexpr (std::is_same_v<T, uint8_t>) {
    return make_float2(behind_2_to_23(word, 2 * h) - 0x1p23f,
                       behind_2_to_23(word, 2 * h + 1) - 0x1p23f);
  } else {
    constexpr auto kKind = std::is_same_v<T, __nv_fp8_e4m3> ? __NV_E4M3 : __NV_E5M2;
    const auto both = static_cast<__nv_fp8x2_storage_t>(word >> 16 * h);
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(both, kKind)));
  }
}

}  // namespace mirage::tile
