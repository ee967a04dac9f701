// Attention of many query rows: products of a warpgroup, and what is carried from step to step.
//
// Query rows take the M side of the warpgroup's instruction, 64 at a time, keys the N side: a warp
// has 16 rows. So the values of attention/values.cuh are met with their sides exchanged: Scores
// [rows, keys], a KeyVector along the rows, a RowVector along the keys.
#pragma once

#include "tile/attention/flash_decode/products.cuh"
#include "tile/mma/wgmma.cuh"

namespace mirage::tile {

constexpr int kWarpRows = kGroupRows / kGroupWarps;
constexpr int kGroupThreads = kGroupWarps * kWarpLanes;
constexpr int kProductKeys = 64;  // keys, or elements of a head, of one instruction

// A barrier of a warpgroup; 0 and 1 are the block's.
__device__ inline void sync_warpgroup() {
  __syncwarp();
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(2 + warp_index() / kGroupWarps),
               "n"(kGroupThreads)
               : "memory");
}

__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Returns when all products but the last kPending groups of them are done.
template <int kPending>
__device__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define MIRAGE_TILE_SET_FOUR(m) "=&f"(d[m][0]), "=&f"(d[m][1]), "=&f"(d[m][2]), "=&f"(d[m][3])
#define MIRAGE_TILE_SET_64                                                       \
  MIRAGE_TILE_SET_FOUR(0), MIRAGE_TILE_SET_FOUR(1), MIRAGE_TILE_SET_FOUR(2),     \
      MIRAGE_TILE_SET_FOUR(3), MIRAGE_TILE_SET_FOUR(4), MIRAGE_TILE_SET_FOUR(5), \
      MIRAGE_TILE_SET_FOUR(6), MIRAGE_TILE_SET_FOUR(7)
#define MIRAGE_TILE_SET_128                                                                       \
  MIRAGE_TILE_SET_64, MIRAGE_TILE_SET_FOUR(8), MIRAGE_TILE_SET_FOUR(9), MIRAGE_TILE_SET_FOUR(10), \
      MIRAGE_TILE_SET_FOUR(11), MIRAGE_TILE_SET_FOUR(12), MIRAGE_TILE_SET_FOUR(13),               \
      MIRAGE_TILE_SET_FOUR(14), MIRAGE_TILE_SET_FOUR(15)
#define MIRAGE_TILE_SUMS_128 MIRAGE_TILE_SUMS_112, MIRAGE_TILE_FOUR(14), MIRAGE_TILE_FOUR(15)
#define MIRAGE_TILE_LIST_128 MIRAGE_TILE_LIST_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MIRAGE_TILE_LIST_72 MIRAGE_TILE_LIST_64 ", %32, %33, %34, %35"

// One instruction of 16 k: scores of two boxes, by keys; products of weights in registers.
template <class T, int kKeys>
struct ScoresMma;
template <class T>
struct ValuesMma;

#define MIRAGE_TILE_SCORES_MMA(T, type, n, list, operands)                                   \
  template <>                                                                                \
  struct ScoresMma<T, n> {                                                                   \
    __device__ static void set(float (&d)[n / 8][4], uint64_t rows, uint64_t box) {          \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list \
                   "}, " operands ", 0, 1, 1, 0, 0;"                                         \
                   : MIRAGE_TILE_SET_##n                                                     \
                   : "l"(rows), "l"(box));                                                   \
    }                                                                                        \
    __device__ static void add(float (&d)[n / 8][4], uint64_t rows, uint64_t box) {          \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" list \
                   "}, " operands ", 1, 1, 1, 0, 0;"                                         \
                   : MIRAGE_TILE_SUMS_##n                                                    \
                   : "l"(rows), "l"(box));                                                   \
    }                                                                                        \
  };
// The values' lines are the k: d += rows * box, and the same with eight elements more.
#define MIRAGE_TILE_VALUES_MMA(T, type)                                                       \
  template <>                                                                                 \
  struct ValuesMma<T> {                                                                       \
    __device__ static void add(float (&d)[8][4], const uint32_t (&rows)[4], uint64_t box) {   \
      asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                \
                   " {" MIRAGE_TILE_LIST_64 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"       \
                   : MIRAGE_TILE_SUMS_64                                                      \
                   : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(box));       \
    }                                                                                         \
    __device__ static void add(float (&d)[8][4], float (&more)[4], const uint32_t (&rows)[4], \
                               uint64_t box) {                                                \
      asm volatile("wgmma.mma_async.sync.aligned.m64n72k16.f32." type "." type                \
                   " {" MIRAGE_TILE_LIST_72 "}, {%36, %37, %38, %39}, %40, 1, 1, 1, 1;"       \
                   : MIRAGE_TILE_SUMS_64, "+f"(more[0]), "+f"(more[1]), "+f"(more[2]),        \
                     "+f"(more[3])                                                            \
                   : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(box));       \
    }                                                                                         \
  };
MIRAGE_TILE_SCORES_MMA(__half, "f16", 64, MIRAGE_TILE_LIST_64, "%32, %33")
MIRAGE_TILE_SCORES_MMA(__half, "f16", 128, MIRAGE_TILE_LIST_128, "%64, %65")
MIRAGE_TILE_SCORES_MMA(__nv_bfloat16, "bf16", 64, MIRAGE_TILE_LIST_64, "%32, %33")
MIRAGE_TILE_SCORES_MMA(__nv_bfloat16, "bf16", 128, MIRAGE_TILE_LIST_128, "%64, %65")
MIRAGE_TILE_VALUES_MMA(__half, "f16")
MIRAGE_TILE_VALUES_MMA(__nv_bfloat16, "bf16")

// Where values of a step's keys are exchanged by a warpgroup: two rooms, used in turns.
struct KeyRooms {
  float* at;
  int turn;
};

// A step's lines of keys, or of values, in shared memory: boxes side by side along the depth.
template <class T, int kKeys, int kDepth>
struct WgmmaKeys {
  const char* at;
  KeyRooms* rooms;
};
// kWaits: for the next scores, once the product has begun; somebody else waits otherwise.
template <class T, int kKeys, int kDepth, bool kWaits>
struct WgmmaValues {
  const char* at;
  const char* ones;  // sixteen lines of them, behind all values
};

// Weights are summed with their product: ones lie beside the values as eight elements more.
struct WgmmaSums {};

// [rows, D] fp32 of a warp's 16 rows, and the sums of their weights: sums[2 i] is that of line i.
template <int kDepth_>
struct WgmmaProduct {
  static constexpr int kDepth = kDepth_;
  float at[kDepth / kProductKeys][8][4] = {};
  float sums[4] = {};
};

// Products and sums of weights are relative to it.
template <int kDepth>
struct WgmmaMaxima : KeyVector<float, kWarpRows> {
  __device__ WgmmaMaxima() { at[0][0] = at[0][1] = RowMaxima<8>::kLowest; }
  // Whether no row of the warp has seen a key: all sums are zeros then.
  __device__ bool is_unset() const { return __all_sync(~0u, !lane_is_set()); }
  __device__ bool lane_is_set() const { return fmaxf(at[0][0], at[0][1]) != RowMaxima<8>::kLowest; }
};

// A box as an operand, which all lanes know to be the same; and one that begins so much later.
__device__ inline uint64_t uniform_descriptor(const char* box) {
  const uint64_t found = descriptor(box);
  const auto low = __shfl_sync(~0u, static_cast<uint32_t>(found), 0);
  return (found & ~uint64_t{0xffffffff}) | low;
}
__device__ inline uint64_t moved(uint64_t box, int bytes) { return box + bytes / kDescriptorUnit; }

// Moves registers between warpgroups.
template <int kRegisters>
__device__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// scores[row, key] = sum over D of queries[row, :] * keys[key, :], begun here. `queries`: the
// warpgroup's lines in shared memory, in boxes of kRows lines.
template <int kRows, class T, int kKeys, int kDepth>
__device__ void begin_scores(Scores<float, kWarpRows, kKeys>& scores, const char* queries,
                             WgmmaKeys<T, kKeys, kDepth> keys) {
  const uint64_t rows = uniform_descriptor(queries), box = uniform_descriptor(keys.at);
  begin_products();
#pragma unroll
  for (int k = 0; k < kDepth / kMmaDepth; ++k) {
    const int at = k % kMmas * kMmaBytes, boxes = k / kMmas * kTmaRowBytes;
    if (k == 0) {
      ScoresMma<T, kKeys>::set(scores.at[0], rows, box);
    } else {
      ScoresMma<T, kKeys>::add(scores.at[0], moved(rows, boxes * kRows + at),
                               moved(box, boxes * kKeys + at));
    }
  }
  commit_products();
}

// product[row, d] += sum over the step's keys of weights[row, key] * values[key, d], begun here.
template <class T, int kKeys, int kDepth, bool kWaits>
__device__ void contract_values(WgmmaProduct<kDepth>& product,
                                WgmmaValues<T, kKeys, kDepth, kWaits> values,
                                const PackedScores<T, kWarpRows, kKeys>& weights) {
  constexpr int kLast = kDepth / kProductKeys - 1, kStep = kMmaDepth * kTmaRowBytes;
  constexpr int kTmaBytes = kKeys * kTmaRowBytes;
  const uint64_t box = uniform_descriptor(values.at);
  // How far behind the last box the next elements are: the descriptor's second field, which is 1.
  const auto apart = static_cast<uint32_t>(values.ones - values.at - kLast * kTmaBytes);
  const uint64_t with_ones =
      moved(box, kLast * kTmaBytes) +
      (static_cast<uint64_t>(__shfl_sync(~0u, apart / kDescriptorUnit - 1, 0)) << 16);
  begin_products();
#pragma unroll
  for (int k = 0; k < kKeys / kMmaDepth; ++k) {
    const auto& low = weights.at[0][2 * k];
    const auto& high = weights.at[0][2 * k + 1];
    const uint32_t rows[4] = {bits(low[0]), bits(low[1]), bits(high[0]), bits(high[1])};
#pragma unroll
    for (int d = 0; d < kLast; ++d) {
      ValuesMma<T>::add(product.at[d], rows, moved(box, d * kTmaBytes + k * kStep));
    }
    constexpr uint64_t kNearer = uint64_t{kStep / kDescriptorUnit} << 16;
    ValuesMma<T>::add(product.at[kLast], product.sums, rows,
                      moved(with_ones, k * kStep) - k * kNearer);
  }
  commit_products();
  if constexpr (kWaits) wait_products<1>();  // all but these: the next scores are there
}

constexpr int kOnesBytes = kMmaDepth * kTmaRowBytes;
template <class T>
__device__ void write_ones(char* at) {
  for (int i = threadIdx.x; i < kOnesBytes / static_cast<int>(sizeof(T)); i += blockDim.x) {
    reinterpret_cast<T*>(at)[i] = cast<T>(1.0f);
  }
}

struct Larger {
  __device__ static float of(float a, float b) { return fmaxf(a, b); }
};
struct Smaller {
  __device__ static float of(float a, float b) { return fminf(a, b); }
};

// The largest, or smallest, score of a lane's two rows, of those that the lane has.
template <class Choice, int kKeys>
__device__ void line_maxima(float (&most)[2], const Scores<float, kWarpRows, kKeys>& scores) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    most[i] = scores.at[0][0][2 * i];
#pragma unroll
    for (int n = 0; n < kKeys / kTokenTile; ++n) {
      most[i] = Choice::of(most[i], Choice::of(scores.at[0][n][2 * i], scores.at[0][n][2 * i + 1]));
    }
  }
}

// How far scores may be above what is called their maximum: weights are below 60000 then, within
// the range of every storage type. Any number is right as a maximum. The first one is a little more
// than it must be: few weights are so small then that they lose digits. Those that rise take more,
// as such scores are far apart, and what is far below the largest matters little. So few steps have
// to rescale.
constexpr float kLargestWeight = 59000.0f;
constexpr float kHeadroom = 5.0f, kMoreHeadroom = 8.0f;
__device__ inline float raised_maximum(float maximum, float most) {
  return fmaxf(maximum, most + (maximum == RowMaxima<8>::kLowest ? kHeadroom : kMoreHeadroom));
}

// Of what the lanes of a row have, the largest.
__device__ inline void share_most(float (&most)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
    most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
  }
}

// Warps come here on their own. A wait for products is one of all warps of a warpgroup, so it was
// before.
template <int kDepth>
__device__ void rescale_to(const float (&most)[2], WgmmaMaxima<kDepth>& maximum,
                           WgmmaProduct<kDepth>& product) {
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float old = maximum.at[0][i];
    maximum.at[0][i] = raised_maximum(old, most[i]);
    factor[i] = fast_exp(old - maximum.at[0][i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    product.sums[i] *= factor[i / 2];
    unrolled<kDepth / kProductKeys, 8>([&](int d, int n) { product.at[d][n][i] *= factor[i / 2]; });
  }
}

}  // namespace mirage::tile
