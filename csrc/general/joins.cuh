// What sums and maxima join by, and how the lanes of a warp join theirs.
#pragma once

#include "general/vectors.cuh"
#include "tile/math/elementwise.cuh"

namespace mirage::general {

struct Sum {
  static constexpr float kIdentity = 0.0f;
  static __device__ float join(float a, float b) { return a + b; }
};
struct Max {
  static constexpr float kIdentity = -INFINITY;
  static __device__ float join(float a, float b) { return tile::maximum(a, b); }
};

// The maximum that exponents are taken relative to. Where nothing is seen, or all of it is -inf, it
// is finite, and exp(x - it) is 0.
struct Peak : Max {
  static constexpr float kIdentity = -3.4028234663852886e38f;  // the lowest
};

// The join of what kLanes lanes beside each other have, in each of them. All of these get here, and
// all lanes of the warp if it is `kWhole`.
template <class Op, int kLanes, bool kWhole>
__device__ float join_lanes(float value) {
  constexpr unsigned kMine = ~0u >> (kWarpLanes - kLanes);
  const unsigned first = thread_of<kWarpLanes>() / kLanes * kLanes;
  const unsigned lanes = kWhole ? ~0u : kMine << first;
#pragma unroll
  for (int far = kLanes / 2; far > 0; far /= 2)
    value = Op::join(value, __shfl_xor_sync(lanes, value, far));
  return value;
}

}  // namespace mirage::general
