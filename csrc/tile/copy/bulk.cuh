// mbarriers, and bulk copies from device into shared memory that signal them.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "bulk copies and their barriers begin with sm_90"
#endif

namespace mirage::tile {

// An mbarrier of one arriving thread or several: a phase completes when all have arrived and all
// expected bytes have landed.
struct Mbarrier {
  uint64_t state;
};

__device__ inline uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

__device__ inline void init(Mbarrier& barrier, int arrivals = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(arrivals));
}

__device__ inline void arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
               : "memory");
}

// After init and before asynchronous copies use the barriers.
__device__ inline void fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders what threads wrote to shared memory before asynchronous copies and wgmma that read it.
__device__ inline void fence_proxies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The thread arrives once all its earlier cp.async copies have landed.
__device__ inline void arrive_with_copies(Mbarrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
      : "memory");
}

// True in one lane of a converged warp.
__device__ inline bool elected() {
  uint32_t chosen;
  asm volatile(
      "{ .reg .pred me;\n"
      "elect.sync _|me, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, me; }"
      : "=r"(chosen));
  return chosen != 0;
}

// Starts a copy of `bytes` bytes (a multiple of 16, both addresses aligned to 16) in the current
// phase.
__device__ inline void copy_bulk(void* shared, const void* global, uint32_t bytes,
                                 Mbarrier& barrier) {
  const uint32_t full = shared_address(&barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(full)
      : "memory");
}

// Waits until the phase of the given parity (0, 1, 0, ... from init) has completed.
__device__ inline void wait(Mbarrier& barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again_%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=; }" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace mirage::tile
