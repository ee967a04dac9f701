// Waits for other blocks that never end if blocks disagree about who does what. Blocks read lengths
// by themselves: where a caller breaks the promise of constant_history, they may read different
// ones. Such a wait ends the launch instead: csrc/torch/device.cpp says why.
#pragma once

#include "tile/sync/cluster.cuh"

namespace mirage::tile {

// So long no wait of a sound call takes: blocks wait for others at work on the same tile.
constexpr uint64_t kMostNanoseconds = 10'000'000'000;

__device__ inline uint64_t nanoseconds() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Calls done() until it returns true. Time is looked at after it was false once. No assertion with
// a text: a function call in a kernel makes the compiler serialise its wgmma products.
template <class Done>
__device__ void wait_at_most(Done done) {
  uint64_t began = 0;
  while (!done()) {
    const uint64_t now = nanoseconds();
    if (began == 0) began = now;
    if (now - began > kMostNanoseconds) asm volatile("trap;");
  }
}

}  // namespace mirage::tile
