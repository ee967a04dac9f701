// Rows across a cluster: each block holds an equal piece of one token's line in registers, and the
// blocks add up their sums through distributed shared memory. For few tokens, which leave most
// multiprocessors idle where a block holds a whole line.
#pragma once

#include "tile/row_wise/rows.cuh"
#include "tile/sync/cluster.cuh"

namespace mirage {

template <class... Knobs>
struct ClusterRows : Knobs... {};  // a config (variants.h)

}  // namespace mirage

namespace mirage::tile {

// The sum of a line whose pieces the `kBlocks` blocks of a cluster hold: the same in all their
// threads and in every run. `parts` and `pieces` are shared memory of this sum alone. Every block
// of the cluster must have started.
template <class Map, int kBlocks, class V>
__device__ float sum_cluster(const Line<Map, V>& piece, float* parts, float (&pieces)[kBlocks]) {
  const float own = sum_line<Map>(piece, parts);
  if (threadIdx.x < kBlocks) {
    const uint32_t there = map_to_block(&pieces[cluster_rank()], static_cast<int>(threadIdx.x));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(own) : "memory");
  }
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
  float sum = 0.0f;
  unrolled<kBlocks>([&](int block) { sum += pieces[block]; });
  return sum;
}

}  // namespace mirage::tile
