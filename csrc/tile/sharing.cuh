// Rows that the grid does not cut, shared by the blocks of a cluster.
//
// Every block needs the products of all of these rows with its tokens, and blocks of one cluster
// have the same tokens. So each multiplies its part of the rows, and sends the others what it keeps
// of the totals: it reads that much less of the weight from L2.
#pragma once

#include "tile/cluster.cuh"
#include "tile/epilogue.cuh"
#include "tile/kept.cuh"

namespace mirage::tile {

// Kept totals, to which all blocks of a cluster contribute, and the barrier of what comes in.
template <class T, int kLines, int kDepth>
struct SharedKept : Kept<T, kLines, kDepth> {
  using Whole = Kept<T, kLines, kDepth>;
  static constexpr int kBytes = Whole::kBytes + 128;  // what lies behind begins where banks do
  __device__ CopyBarrier& arrived() const {
    return *reinterpret_cast<CopyBarrier*>(this->shared + Whole::kBytes);
  }
};

// At the start, by all threads: makes the barrier, and says so to the other blocks.
template <int kBlocks, class T, int kLines, int kDepth>
__device__ void begin_sharing(SharedKept<T, kLines, kDepth> kept) {
  constexpr int kIncoming =
      (kBlocks - 1) * kLines * (kDepth / kBlocks) * static_cast<int>(sizeof(T));
  if (threadIdx.x == 0) {
    init(kept.arrived());
    fence_init();
    expect(kept.arrived(), kIncoming);
  }
  __syncwarp();
  arrive_cluster();
}

// kept[token, row] = value, converted once; `tile` begins with this block's part of the rows.
template <class T, int kLines, int kDepth>
__device__ void keep(SharedKept<T, kLines, kDepth> kept, OutputTile tile, Element e, float value) {
  *kept.at(e.token, tile.first_row + e.row) = cast<T>(value);
}

// Behind a barrier of the block: sends this block's part, returns when the others' are here.
template <int kBlocks, int kThreads, class T, int kLines, int kDepth>
__device__ void exchange(SharedKept<T, kLines, kDepth> kept) {
  constexpr int kPart = kDepth / kBlocks, kOctets = kPart / kLaneDepth;
  static_assert(kDepth % (kBlocks * kLaneDepth) == 0, "whole octets");
  const int rank = cluster_rank();
  wait_cluster();  // the others' barriers are there
#pragma unroll 1
  for (int i = threadIdx.x; i < (kBlocks - 1) * kLines * kOctets; i += kThreads) {
    const int to = (rank + 1 + i / (kLines * kOctets)) % kBlocks;
    const int line = i % (kLines * kOctets) / kOctets, octet = i % kOctets;
    const T* own = kept.at(line, rank * kPart + octet * kLaneDepth);
    push(in_block(own, to), *reinterpret_cast<const float4*>(own), in_block(&kept.arrived(), to));
  }
  wait_for_pushes(kept.arrived(), 0);
}

}  // namespace mirage::tile
