// A cluster: the blocks of a cluster that take a range together, every warp of them its own
// key blocks.
//
// After a work item each block sends its sums to the others, each of which finishes its share of
// the elements: so the cluster's sums meet in shared memory, without a trip to the device's. A
// block adds up in the order of the blocks, the same in every run.
#pragma once

#include "tile/attention/combine.cuh"

namespace mirage::tile {

// What arrives in a block: of every block of the cluster, pairs of this block's share. One phase of
// the barrier is one item.
template <int kRows, int kDepth>
class ClusterReduction {
 public:
  using Places = Pairs<kRows, kDepth>;
  // Shares round up.
  static constexpr int kRoom = kHasClusters<kDepth> ? Places::kMost + 2 * kMaxCluster : 0;
  static constexpr int kBarrierAt = kRoom * static_cast<int>(sizeof(float4));
  static constexpr int kBytes = kBarrierAt + 16;

  __device__ explicit ClusterReduction(char* shared)
      : shared_(shared),
        rank_(kHasClusters<kDepth> ? cluster_rank() : 0),
        size_(kHasClusters<kDepth> ? cluster_size() : 1) {
    if (alone()) return;
    inverse_ = reciprocal(static_cast<float>(size_));
    if (threadIdx.x == 0) {
      init(barrier());
      fence_init();
    }
    __syncthreads();
    arrive_cluster();
  }

  __device__ bool alone() const { return !kHasClusters<kDepth> || size_ == 1; }
  __device__ int rank() const { return rank_; }
  __device__ int size() const { return size_; }

  // Pairs are partitioned out in turns: pair i is number i / size of block i % size.
  __device__ int count(int pairs) const { return place(pairs - rank_ + size_ - 1); }
  __device__ int pair(int place) const { return place * size_ + rank_; }
  // A quotient of small numbers, for which a rounded inverse is exact enough.
  __device__ int place(int pair) const {
    return static_cast<int>((static_cast<float>(pair) + 0.5f) * inverse_);
  }

  // Before the sends of a work item: what these overwrite has been read.
  __device__ void begin(int pairs) {
    if (threadIdx.x == 0) expect(barrier(), size_ * count(pairs) * sizeof(float4));
    wait_cluster();
  }

  // To the block that finishes a pair.
  __device__ void send(int pair, const Total& total) const {
    const int turn = place(pair), to = pair - turn * size_;
    tile::store_dsmem(map_to_block(at(rank_, turn), to), total.all(),
                      map_to_block(shared_ + kBarrierAt, to));
  }

  // Returns when all of the item has arrived.
  __device__ void end() {
    wait_for_dsmem_stores(barrier(), parity_);
    parity_ ^= 1;
  }

  // After the last read of a work item, if there is another one.
  __device__ void go_on() const {
    if (!alone()) arrive_cluster();
  }

  // Neighbouring lanes that share what blocks sent of a pair: 2^shift, each a few of them.
  __device__ int shift() const {
    if (!kHasClusters<kDepth>) return 0;
    return (size_ > kTogether) + (size_ > 2 * kTogether);
  }

  // What all blocks sent of the pair at a place.
  __device__ Total total(int place) const {
    Total total;
    const int own = lane() & ((1 << shift()) - 1);
    add_left<kTogether, false>(total, Sent{*this, place}, own * kTogether,
                               min((own + 1) * kTogether, size_) - 1);
    add_over_lanes(total, 1 << shift());
    return total;
  }

 private:
  static constexpr int kTogether = 4;  // blocks whose sums are read at once
  struct Sent {
    const ClusterReduction& cluster;
    int place;
    __device__ Total of(int block) const { return Total(*cluster.at(block, place)); }
  };
  __device__ Mbarrier& barrier() const {
    return *reinterpret_cast<Mbarrier*>(shared_ + kBarrierAt);
  }
  __device__ float4* at(int block, int place) const {
    return reinterpret_cast<float4*>(shared_) + place * size_ + block;
  }

  char* shared_;
  int rank_, size_;
  float inverse_ = 1.0f;
  uint32_t parity_ = 0;
};

}  // namespace mirage::tile
