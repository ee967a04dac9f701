// A crew: the blocks of a cluster that take a stretch together, every warp of them its own units.
//
// After a part each block pushes its sums to the others, each of which finishes its share of the
// elements: so the crew's sums meet in shared memory, without a trip to the device's. A block adds
// up in the order of the blocks, the same in every run.
#pragma once

#include "tile/attention_total.cuh"

namespace mirage::tile {

// What arrives in a block: of every block of the crew, quads of this block's share. One phase of
// the barrier is one part.
template <int kRows, int kDepth>
class CrewMeeting {
 public:
  using Places = Quads<kRows, kDepth>;
  static constexpr int kRoom = kHasCrews<kDepth> ? Places::kMost + kMostCrew : 0;
  static constexpr int kBarrierAt = kRoom * 2 * static_cast<int>(sizeof(float4));
  static constexpr int kBytes = kBarrierAt + 16;

  __device__ explicit CrewMeeting(char* shared)
      : shared_(shared),
        rank_(kHasCrews<kDepth> ? cluster_rank() : 0),
        size_(kHasCrews<kDepth> ? cluster_size() : 1) {
    if (alone()) return;
    inverse_ = reciprocal(static_cast<float>(size_));
    if (threadIdx.x == 0) {
      init(barrier());
      fence_init();
    }
    __syncthreads();
    arrive_cluster();
  }

  __device__ bool alone() const { return !kHasCrews<kDepth> || size_ == 1; }
  __device__ int rank() const { return rank_; }
  __device__ int size() const { return size_; }

  // Quads are dealt out in turns: quad i is number i / size of block i % size.
  __device__ int count(int quads) const { return place(quads - rank_ + size_ - 1); }
  __device__ int quad(int place) const { return place * size_ + rank_; }
  // A quotient of small numbers, for which a rounded inverse is exact enough.
  __device__ int place(int quad) const {
    return static_cast<int>((static_cast<float>(quad) + 0.5f) * inverse_);
  }
  // That can share what blocks sent of a quad: a power of two, not fewer than blocks.
  __device__ int lanes() const { return 1 << (kWarpLanes - __clz(size_ - 1)); }

  // Before the pushes of a part: what these overwrite has been read.
  __device__ void begin(int quads) {
    if (threadIdx.x == 0) expect(barrier(), size_ * count(quads) * 2 * sizeof(float4));
    wait_cluster();
  }

  // To the block that finishes a quad: by two lanes each a half, or by one both.
  __device__ void push(int quad, const Total& total, bool values, bool rows) const {
    const int turn = this->place(quad), to = quad - turn * size_;
    const uint32_t place = in_block(at(rank_, turn), to);
    const uint32_t done = in_block(shared_ + kBarrierAt, to);
    if (values) tile::push(place, total.values(), done);
    if (rows) tile::push(place + sizeof(float4), total.rows(), done);
  }

  // Returns when all of the part has arrived.
  __device__ void end() {
    wait_for_pushes(barrier(), parity_);
    parity_ ^= 1;
  }

  // After the last read of a part, if there is another one.
  __device__ void go_on() const {
    if (!alone()) arrive_cluster();
  }

  // What a block sent of the quad at a place; nothing, if there is no such block.
  __device__ Total sent(int place, int block) const {
    if (block >= size_) return {};
    const float4* const quad = at(block, place);
    return {quad[0], quad[1]};
  }

 private:
  __device__ CopyBarrier& barrier() const {
    return *reinterpret_cast<CopyBarrier*>(shared_ + kBarrierAt);
  }
  __device__ float4* at(int block, int place) const {
    return reinterpret_cast<float4*>(shared_) + (place * size_ + block) * 2;
  }

  char* shared_;
  int rank_, size_;
  float inverse_ = 1.0f;
  uint32_t parity_ = 0;
};

}  // namespace mirage::tile
