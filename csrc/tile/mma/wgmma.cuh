// wgmma: products of a warpgroup (four warps), 64 rows of the M side at a time, tokens on the N
// side.
#pragma once

#include "tile/copy/tma.cuh"
#include "tile/mma/resident.cuh"

namespace mirage::tile {

constexpr int kGroupWarps = 4;
constexpr int kGroupRows = 64;                // rows of one instruction: 16 per warp
constexpr int kDescriptorUnit = 16;           // bytes
constexpr int kMmaBytes = kMmaDepth * 2;      // of one line
constexpr int kMmas = kTmaDepth / kMmaDepth;  // along the depth of a tile

// [N, M] fp32 of a warpgroup: of tile r and tokens 8 m + 0..7 a lane has the accumulators of an
// mma.m16n8k16.
template <int kTiles_, int kTokens_>
struct WideAccum {
  static constexpr int kTiles = kTiles_, kTokens = kTokens_;
  float at[kTiles][kTokens / kTokenTile][4] = {};
};

// The descriptor of a TMA tile in shared memory whose lines have 128 bytes, or 64, which the
// swizzle covers.
template <int kLineBytes = kTmaRowBytes>
__device__ uint64_t descriptor(const char* tile) {
  constexpr uint64_t kSwizzle = uint64_t{kLineBytes == kTmaRowBytes ? 1 : 2} << 62;
  constexpr uint64_t kEightLines = uint64_t{8 * kLineBytes / kDescriptorUnit} << 32;
  return kSwizzle | kEightLines | uint64_t{1} << 16 |
         (shared_address(tile) & 0x3ffff) / kDescriptorUnit;
}

__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when all products but the last kPending groups of them are done: operands may then be
// overwritten and sums read.
template <int kPending = 0>
__device__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Waits for all products of the warpgroup but those issued since the last kPending calls.
template <int kPending = 0>
__device__ void end_products() {
  commit_products();
  wait_products<kPending>();
}

// The fp32 accumulators of a lane, n / 2 registers, as asm operands and as PTX lists them.
#define MIRAGE_TILE_FOUR(m) "+f"(d[m][0]), "+f"(d[m][1]), "+f"(d[m][2]), "+f"(d[m][3])
#define MIRAGE_TILE_SUMS_16 MIRAGE_TILE_FOUR(0), MIRAGE_TILE_FOUR(1)
#define MIRAGE_TILE_SUMS_32 MIRAGE_TILE_SUMS_16, MIRAGE_TILE_FOUR(2), MIRAGE_TILE_FOUR(3)
#define MIRAGE_TILE_SUMS_48 MIRAGE_TILE_SUMS_32, MIRAGE_TILE_FOUR(4), MIRAGE_TILE_FOUR(5)
#define MIRAGE_TILE_SUMS_64 MIRAGE_TILE_SUMS_48, MIRAGE_TILE_FOUR(6), MIRAGE_TILE_FOUR(7)
#define MIRAGE_TILE_SUMS_72 MIRAGE_TILE_SUMS_64, MIRAGE_TILE_FOUR(8)
#define MIRAGE_TILE_SUMS_80 MIRAGE_TILE_SUMS_72, MIRAGE_TILE_FOUR(9)
#define MIRAGE_TILE_SUMS_96 MIRAGE_TILE_SUMS_80, MIRAGE_TILE_FOUR(10), MIRAGE_TILE_FOUR(11)
#define MIRAGE_TILE_SUMS_112 MIRAGE_TILE_SUMS_96, MIRAGE_TILE_FOUR(12), MIRAGE_TILE_FOUR(13)
#define MIRAGE_TILE_SUMS_128 MIRAGE_TILE_SUMS_112, MIRAGE_TILE_FOUR(14), MIRAGE_TILE_FOUR(15)
#define MIRAGE_TILE_LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MIRAGE_TILE_LIST_32 MIRAGE_TILE_LIST_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MIRAGE_TILE_LIST_48 MIRAGE_TILE_LIST_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MIRAGE_TILE_LIST_64 MIRAGE_TILE_LIST_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define MIRAGE_TILE_LIST_72 MIRAGE_TILE_LIST_64 ", %32, %33, %34, %35"
#define MIRAGE_TILE_LIST_80 MIRAGE_TILE_LIST_72 ", %36, %37, %38, %39"
#define MIRAGE_TILE_LIST_96 MIRAGE_TILE_LIST_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MIRAGE_TILE_LIST_112 MIRAGE_TILE_LIST_96 ", %48, %49, %50, %51, %52, %53, %54, %55"

#define MIRAGE_TILE_LIST_128 MIRAGE_TILE_LIST_112 ", %56, %57, %58, %59, %60, %61, %62, %63"

// One instruction by element type and n: A from registers, or both operands from shared memory.
// kTransposed: the lines of B are the k; kAdds: to what the sums are. a0 to a3 and b are the
// numbers of the asm operands after the accumulators. (cute/arch/mma_sm90_gmma.hpp has the same
// atoms; including it costs each file 1.7 s, 38 % of a compilation.)
template <class T, int kTokens, bool kTransposed = false>
struct Wgmma;

#define MIRAGE_TILE_WGMMA_OF(T, type, n, a0, a1, a2, a3, b, transposed)                          \
  template <>                                                                                    \
  struct Wgmma<T, n, transposed> {                                                               \
    __device__ static void add(float (&d)[n / 8][4], const uint32_t (&rows)[4], uint64_t to) {   \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type               \
                   " {" MIRAGE_TILE_LIST_##n "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b \
                                             ", 1, 1, 1, " #transposed ";"                       \
                   : MIRAGE_TILE_SUMS_##n                                                        \
                   : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(to));           \
    }                                                                                            \
    template <bool kAdds = true>                                                                 \
    __device__ static void add(float (&d)[n / 8][4], uint64_t rows, uint64_t to) {               \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type               \
                   " {" MIRAGE_TILE_LIST_##n "}, %" #a0 ", %" #a1 ", %" #a2 ", 1, 1, 0, 0;"      \
                   : MIRAGE_TILE_SUMS_##n                                                        \
                   : "l"(rows), "l"(to), "n"(int{kAdds}));                                       \
    }                                                                                            \
  };
#define MIRAGE_TILE_WGMMA(...)                     \
  MIRAGE_TILE_WGMMA_OF(__half, "f16", __VA_ARGS__) \
  MIRAGE_TILE_WGMMA_OF(__nv_bfloat16, "bf16", __VA_ARGS__)

MIRAGE_TILE_WGMMA(16, 8, 9, 10, 11, 12, 0)
MIRAGE_TILE_WGMMA(32, 16, 17, 18, 19, 20, 0)
MIRAGE_TILE_WGMMA(32, 16, 17, 18, 19, 20, 1)
MIRAGE_TILE_WGMMA(48, 24, 25, 26, 27, 28, 0)
MIRAGE_TILE_WGMMA(64, 32, 33, 34, 35, 36, 0)
MIRAGE_TILE_WGMMA(64, 32, 33, 34, 35, 36, 1)
MIRAGE_TILE_WGMMA(72, 36, 37, 38, 39, 40, 1)
MIRAGE_TILE_WGMMA(80, 40, 41, 42, 43, 44, 0)
MIRAGE_TILE_WGMMA(96, 48, 49, 50, 51, 52, 0)
MIRAGE_TILE_WGMMA(112, 56, 57, 58, 59, 60, 0)
MIRAGE_TILE_WGMMA(128, 64, 65, 66, 67, 68, 0)

// The A operand of one instruction: of lines g and g + 8 a lane has the pairs 2t, 2t + 1 and 2t +
// 8, 2t + 9 of 16 k. Instruction `m` takes pairs 2 (m % 2) and the next one of chunk m / 2.
template <class T>
struct OperandA {
  uint32_t registers[4];
  __device__ OperandA(const Vec16<T>& low, const Vec16<T>& high, int m)
      : registers{bits(low.pairs[m % 2 * 2]), bits(high.pairs[m % 2 * 2]),
                  bits(low.pairs[m % 2 * 2 + 1]), bits(high.pairs[m % 2 * 2 + 1])} {}
};

// Loads this operand by ldmatrix: `from` is the shared address of the 16 bytes that this lane
// provides.
template <class T>
__device__ void load_operand(Vec16<T>& low, Vec16<T>& high, int m, uint32_t from) {
  const int p = m % 2 * 2;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(reinterpret_cast<uint32_t&>(low.pairs[p])),
                 "=r"(reinterpret_cast<uint32_t&>(high.pairs[p])),
                 "=r"(reinterpret_cast<uint32_t&>(low.pairs[p + 1])),
                 "=r"(reinterpret_cast<uint32_t&>(high.pairs[p + 1]))
               : "r"(from)
               : "memory");
}

// Loads the same k of a [K] vector, whose first element lies at `first`.
template <class T, int kDepth>
__device__ DepthFrag<T, kDepth> load_vector(const char* first) {
  DepthFrag<T, kDepth> vector;
  const char* from = first + lane_quarter() * 2 * sizeof(T);
#pragma unroll
  for (int m = 0; m < kDepth / kMmaDepth; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      vector.at[0][m / 2].pairs[m % 2 * 2 + h] =
          *reinterpret_cast<const Pair<T>*>(from + (m * kMmaDepth + h * kLineTile) * sizeof(T));
    }
  }
  return vector;
}

// A TMA tile of rows or of tokens as a shared-memory operand: `at` is its first line for this
// warpgroup.
template <class T>
struct RowTma {
  const char* at;
};
template <class T>
struct TokenTma {
  const char* at;
};

// accum[n, m] += sum over k of rows[n, k] * tokens[m, k], asynchronously: complete after
// end_products().
template <int kTiles, int kTokens, class T>
__device__ void contract(WideAccum<kTiles, kTokens>& accum, RowTma<T> rows, TokenTma<T> tokens) {
  begin_products();
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
#pragma unroll
    for (int k = 0; k < kMmas; ++k) {
      Wgmma<T, kTokens>::add(accum.at[r],
                             descriptor(rows.at + r * kGroupRows * kTmaRowBytes + k * kMmaBytes),
                             descriptor(tokens.at + k * kMmaBytes));
    }
  }
}

// The same with the rows in registers: of tile r a warp has 16 rows, lines 2 r and 2 r + 1 of a
// lane.
template <int kTiles, int kTokens, class T, int kLines, int kChunks>
__device__ void contract(WideAccum<kTiles, kTokens>& accum,
                         const Fragment<Dims::kRowsDepth, T, kLines, kChunks>& rows,
                         TokenTma<T> tokens) {
  static_assert(kLines == 2 * kTiles && kChunks * 2 == kMmas, "rows of all tiles, a whole tile");
  begin_products();
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
#pragma unroll
    for (int k = 0; k < kMmas; ++k) {
      const OperandA<T> operand(rows.at[2 * r][k / 2], rows.at[2 * r + 1][k / 2], k);
      Wgmma<T, kTokens>::add(accum.at[r], operand.registers, descriptor(tokens.at + k * kMmaBytes));
    }
  }
}

}  // namespace mirage::tile
