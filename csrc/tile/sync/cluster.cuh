// Thread-block clusters: ranks, the cluster barrier, and stores into another block's shared memory
// (DSMEM).
#pragma once

#include "tile/copy/bulk.cuh"

namespace mirage::tile {

__device__ inline int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The number of blocks of the cluster; one without a cluster launch.
__device__ inline int cluster_size() {
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

// The cluster's index in a one-dimensional grid, and the number of clusters.
__device__ inline int cluster_index() {
  int index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}
__device__ inline int cluster_count() {
  int count;
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}

// All threads of all blocks arrive, then wait. Relaxed: an arrival with release waits for all
// memory accesses of the block in flight (1.0 us a launch), and here others only need to know that
// reads have finished.
__device__ inline void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void wait_cluster() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Arrives once and expects so many bytes before the phase completes.
__device__ inline void expect(Mbarrier& barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
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
__device__ inline void store_dsmem(uint32_t to, float2 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(to),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}
__device__ inline void store_dsmem(uint32_t to, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

// Waits like wait() of copy/bulk.cuh, for DSMEM stores of other blocks.
__device__ inline void wait_for_dsmem_stores(Mbarrier& barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=; }" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace mirage::tile
