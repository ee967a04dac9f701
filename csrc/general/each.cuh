// What general kernels without tiles are written in: all threads of a block go through elements of
// device memory. It needs no headers of CuTe.
#pragma once

#include <type_traits>

#include "general/joins.cuh"
#include "general/launch.cuh"
#include "general/vectors.cuh"
#include "tile/math/elementwise.cuh"
#include "tile/sync/dependent_launch.cuh"

namespace mirage::general {

// do_one(i) for i below kCount, dealt to the threads in turn, kAtOnce of them without a loop.
template <int kThreads, int kCount, int kAtOnce = 8, class Do>
__device__ void each(Do do_one) {
  constexpr int kRounds = kCount / kThreads, kRest = kCount % kThreads;
  const int thread = thread_of<kThreads>();
#pragma unroll kAtOnce
  for (int round = 0; round < kRounds; ++round) do_one(thread + round * kThreads);
  if constexpr (kRest > 0) {
    if (thread < kRest) do_one(thread + kRounds * kThreads);
  }
}

template <int kCount>
using Count = std::integral_constant<int, kCount>;

// The same in two parts: take(i, taken) for kAtOnce of them, then use(i, taken) for these.
template <class Taken, int kThreads, int kCount, int kAtOnce, class Take, class Use>
__device__ void each_taken(Take take, Use use) {
  constexpr int kRounds = kCount / kThreads, kRest = kCount % kThreads;
  constexpr int kTogether = kRounds < kAtOnce ? (kRounds > 0 ? kRounds : 1) : kAtOnce;
  const int thread = thread_of<kThreads>();
  Taken taken[kTogether];
  const auto together = [&](auto count, int first) {
    constexpr int kNow = decltype(count)::value;
#pragma unroll
    for (int j = 0; j < kNow; ++j) take(first + j * kThreads, taken[j]);
#pragma unroll
    for (int j = 0; j < kNow; ++j) use(first + j * kThreads, taken[j]);
  };
#pragma unroll 1
  for (int round = 0; round + kTogether <= kRounds; round += kTogether)
    together(Count<kTogether>{}, thread + round * kThreads);
  together(Count<kRounds % kTogether>{}, thread + (kRounds - kRounds % kTogether) * kThreads);
  if constexpr (kRest > 0) {
    if (thread < kRest) together(Count<1>{}, thread + kRounds * kThreads);
  }
}

struct Nothing {};  // taken

// The largest of(i) for i below kCount: all threads get it, each warp by itself.
template <int kCount, class Of>
__device__ int largest(Of of) {
  if constexpr (kCount == 1) return of(0);
  int found = of(threadIdx.x % kWarpLanes % kCount);
  for (int i = threadIdx.x % kWarpLanes + kWarpLanes; i < kCount; i += kWarpLanes)
    found = max(found, of(i));
  return __reduce_max_sync(~0u, found);
}

// Steps of a loop: how many reach all of so many places, and how many lie before them.
__device__ inline int steps_to(int places, int step) {
  return places > 0 ? (places - 1) / step + 1 : 0;
}
__device__ inline int steps_before(int places, int step) { return places > 0 ? places / step : 0; }

}  // namespace mirage::general
