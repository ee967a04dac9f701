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
constexpr int kProductKeys = 64;    // keys, or elements of a head, of one instruction
constexpr int kLeastStepKeys = 32;  // of a warp's scores

// A barrier of a warpgroup; 0 and 1 are the block's.
__device__ inline void sync_warpgroup() {
  __syncwarp();
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(2 + warp_index() / kGroupWarps),
               "n"(kGroupThreads)
               : "memory");
}

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
};

// Weights are summed with their product.
struct WgmmaSums {};

// [rows, D] fp32 of a warp's 16 rows, and behind them the sums of their weights before these are
// rounded: sums()[2 i] and sums()[2 i + 1] are those of line i, in two parts, of this lane's keys.
// After total_sums() sums()[2 i] is that of all keys.
template <int kDepth_>
struct WgmmaProduct {
  static constexpr int kDepth = kDepth_;
  float at[kDepth / kTokenTile + 1][4] = {};
  __device__ float (&sums())[4] { return at[kDepth / kTokenTile]; }
  __device__ const float (&sums() const)[4] { return at[kDepth / kTokenTile]; }
  __device__ void total_sums() {
    unrolled<2>([&](int i) { sums()[2 * i] = line_total(sums()[2 * i] + sums()[2 * i + 1]); });
  }
  // So many columns from one on.
  template <int kColumns>
  __device__ float (&columns(int first))[kColumns / kTokenTile][4] {
    return reinterpret_cast<float (&)[kColumns / kTokenTile][4]>(at[first / kTokenTile]);
  }
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

// Asks for scores[row, key] (+)= sum over D of queries[row, :] * keys[key, :], among products that
// were begun: of the first kOwn keys. `queries`: the warpgroup's lines in shared memory, in boxes
// of kRows lines.
template <int kRows, bool kAdds, class T, int kOwn, int kKeys, int kDepth>
__device__ void ask_for_scores(Scores<float, kWarpRows, kOwn>& scores, const char* queries,
                               WgmmaKeys<T, kKeys, kDepth> keys) {
  const uint64_t rows = uniform_descriptor(queries), box = uniform_descriptor(keys.at);
  unrolled<kDepth / kMmaDepth>([&](int k) {
    const int at = k % kMmas * kMmaBytes, boxes = k / kMmas * kTmaRowBytes;
    const uint64_t lines = moved(rows, boxes * kRows + at), of = moved(box, boxes * kKeys + at);
    if (k == 0 && !kAdds) {
      // What they were is of no use: without this it would be kept.
      unrolled<kOwn / kTokenTile, 4>([&](int n, int i) { asm("" : "=f"(scores.at[0][n][i])); });
      Wgmma<T, kOwn>::template add<false>(scores.at[0], lines, of);
    } else {
      Wgmma<T, kOwn>::add(scores.at[0], lines, of);
    }
  });
}
template <int kRows, class T, int kKeys, int kDepth>
__device__ void begin_scores(Scores<float, kWarpRows, kKeys>& scores, const char* queries,
                             WgmmaKeys<T, kKeys, kDepth> keys) {
  begin_products();
  ask_for_scores<kRows, false>(scores, queries, keys);
  commit_products();
}

// Asks for product[row, d] += sum of weights[row, key] * values[key, d] over the first keys of a
// step, as many as there are weights, among products that were begun.
template <class T, int kOwn, int kKeys, int kDepth, bool kWaits>
__device__ void add_values(WgmmaProduct<kDepth>& product,
                           WgmmaValues<T, kKeys, kDepth, kWaits> values,
                           const PackedScores<T, kWarpRows, kOwn>& weights) {
  constexpr int kStep = kMmaDepth * kTmaRowBytes, kTmaBytes = kKeys * kTmaRowBytes;
  const uint64_t box = uniform_descriptor(values.at);
  unrolled<kOwn / kMmaDepth>([&](int k) {
    const auto& low = weights.at[0][2 * k];
    const auto& high = weights.at[0][2 * k + 1];
    const uint32_t rows[4] = {bits(low[0]), bits(low[1]), bits(high[0]), bits(high[1])};
    unrolled<kDepth / kProductKeys>([&](int d) {
      Wgmma<T, kProductKeys, true>::add(product.template columns<kProductKeys>(d * kProductKeys),
                                        rows, moved(box, d * kTmaBytes + k * kStep));
    });
  });
}
template <class T, int kKeys, int kDepth, bool kWaits>
__device__ void contract_values(WgmmaProduct<kDepth>& product,
                                WgmmaValues<T, kKeys, kDepth, kWaits> values,
                                const PackedScores<T, kWarpRows, kKeys>& weights) {
  begin_products();
  add_values(product, values, weights);
  commit_products();
  if constexpr (kWaits) wait_products<1>();  // all but these: the next scores are there
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
  unrolled<2>([&](int i) {
    most[i] = scores.at[0][0][2 * i];
    unrolled<kKeys / kTokenTile>([&](int n) {
      most[i] = Choice::of(most[i], Choice::of(scores.at[0][n][2 * i], scores.at[0][n][2 * i + 1]));
    });
  });
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
  unrolled<2>([&](int i) {
    most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
    most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
  });
}

// Warps come here on their own. A wait for products is one of all warps of a warpgroup, so it was
// before.
template <int kDepth>
__device__ void rescale_to(const float (&most)[2], WgmmaMaxima<kDepth>& maximum,
                           WgmmaProduct<kDepth>& product) {
  float factor[2];
  unrolled<2>([&](int i) {
    const float old = maximum.at[0][i];
    maximum.at[0][i] = raised_maximum(old, most[i]);
    factor[i] = near_exp(old - maximum.at[0][i]);
  });
  unrolled<4>([&](int i) {
    unrolled<kDepth / kTokenTile + 1>([&](int n) { product.at[n][i] *= factor[i / 2]; });
  });
}

}  // namespace mirage::tile
