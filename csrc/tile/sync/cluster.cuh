// A cluster of blocks: who is in it, its barrier, and stores into another block's shared memory.
#pragma once

#include "tile/copy/bulk.cuh"

namespace mirage::tile {

__device__ inline int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Blocks of a cluster; one where the launch named none.
__device__ inline int cluster_size() {
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

// Of a grid of one dimension.
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

// All threads of all blocks come to both, in turns. Relaxed: a released arrival waits for all that
// the block has in flight, and nothing but finished reads has to be known (1.0 us a launch).
__device__ inline void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void wait_cluster() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// One arrival, and so many bytes to land before the phase completes.
__device__ inline void expect(Mbarrier& barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

// What has this place in the shared memory of another block.
__device__ inline uint32_t map_to_block(const void* own, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(own)), "r"(rank));
  return there;
}

// Stores that the barrier beside them, of the same block, counts when they have landed.
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

// As wait() of bulk.cuh, for what other blocks of the cluster pushed.
__device__ inline void wait_for_dsmem_stores(Mbarrier& barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again_%=: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=; }" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace mirage::tile
