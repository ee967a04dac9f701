// mbarriers and bulk copies that signal them; thread-block clusters: ranks, the cluster barrier,
// and stores into another block's shared memory (DSMEM).
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "bulk copies, their barriers and clusters begin with sm_90"
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

// Arrives once and expects so many bytes before the phase completes.
__device__ inline void expect(Mbarrier& barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

// Starts a copy of `bytes` bytes (a multiple of 16, both addresses aligned to 16) in the current
// phase.
__device__ inline void copy_bulk(void* shared, const void* global, uint32_t bytes,
                                 Mbarrier& barrier) {
  expect(barrier, bytes);
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(&barrier))
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

// Whether it has, after a short wait. `scope` is of those whose writes are seen then: "" for this
// block, ".acquire.cluster" for DSMEM stores of other blocks too.
#define MIRAGE_TILE_HAS_COMPLETED(name, scope)                      \
  __device__ inline bool name(Mbarrier& barrier, uint32_t parity) { \
    uint32_t completed;                                             \
    asm volatile(                                                   \
        "{ .reg .pred done;\n"                                      \
        "mbarrier.try_wait.parity" scope                            \
        ".shared::cta.b64 done, [%1], %2;\n"                        \
        "selp.u32 %0, 1, 0, done; }"                                \
        : "=r"(completed)                                           \
        : "r"(shared_address(&barrier)), "r"(parity)                \
        : "memory");                                                \
    return completed != 0;                                          \
  }
MIRAGE_TILE_HAS_COMPLETED(has_completed, "")
MIRAGE_TILE_HAS_COMPLETED(have_dsmem_stores_completed, ".acquire.cluster")

#define MIRAGE_TILE_REGISTER(name, ptx)        \
  __device__ inline int name() {               \
    int value;                                 \
    asm("mov.u32 %0, " ptx ";" : "=r"(value)); \
    return value;                              \
  }
MIRAGE_TILE_REGISTER(cluster_rank, "%%cluster_ctarank")
// The number of blocks of the cluster; one without a cluster launch.
MIRAGE_TILE_REGISTER(cluster_size, "%%cluster_nctarank")
// The cluster's index in a one-dimensional grid, and the number of clusters.
MIRAGE_TILE_REGISTER(cluster_index, "%%clusterid.x")
MIRAGE_TILE_REGISTER(cluster_count, "%%nclusterid.x")

// All threads of all blocks arrive, then wait. Relaxed: an arrival with release waits for all
// memory accesses of the block in flight (1.0 us a launch), and here others only need to know that
// reads have finished.
__device__ inline void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void wait_cluster() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Maps an address of this block to the same place in the shared memory of another block.
__device__ inline uint32_t map_to_block(const void* own, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
  return there;
}

// DSMEM stores. The mbarrier beside the target, in the same block, counts their bytes when they
// land.
__device__ inline void store_dsmem(uint32_t to, float value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
      "f"(value), "r"(barrier)
      : "memory");
}
__device__ inline void store_dsmem(uint32_t to, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

// Waits like wait(), for DSMEM stores of other blocks.
__device__ inline void wait_for_dsmem_stores(Mbarrier& barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=; }" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace mirage::tile
