// After a work item: the warps of a block meet, then the blocks of a cluster, then the clusters
// that share a work tile.
//
// Every warp has sums relative to a maximum of its own. Blocks of a cluster send each other sums,
// and each finishes its share of the elements: the cluster's sums meet in shared memory, without a
// trip to the device's. The cluster that has a work tile's first key block finishes it; it is the
// cluster's last item. The others, whose first item it is, leave what they have in the workspace
// and say so by the call's launch tag, a number that memory does not hold by chance: each block its
// share of the elements, to the block of the same rank. Sums are added in the order of blocks and
// clusters, the same in every run, and the tags are wiped out, so that a graph may be replayed. The
// finishing cluster waits for clusters that need not wait for it.
#pragma once

#include "tile/attention/combine.cuh"
#include "tile/attention/flash_decode/pipeline.cuh"

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
  __device__ void send(int pair, const Total<2>& total) const {
    const int turn = place(pair), to = pair - turn * size_;
    tile::store_dsmem(map_to_block(at(rank_, turn), to), packed(total),
                      map_to_block(shared_ + kBarrierAt, to));
  }

  // Returns when all of the item has arrived.
  __device__ void end() {
    wait_at_most([&] { return have_dsmem_stores_completed(barrier(), parity_); });
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

  // What all blocks sent of the pair at a place. All lanes that share it come here.
  __device__ Total<2> total(int place) const {
    Total<2> total;
    const int lanes = 1 << shift(), first = (lane() & (lanes - 1)) * kTogether;
    add_left<kTogether, false>(total, first, min(first + kTogether, size_) - 1,
                               [&](int block) { return unpacked(*at(block, place)); });
#pragma unroll 1
    for (int mask = 1; mask < lanes; mask *= 2) {
      total.raise(fmaxf(total.maximum, __shfl_xor_sync(~0u, total.maximum, mask)));
      total.sum += __shfl_xor_sync(~0u, total.sum, mask);
      total.of[0] += __shfl_xor_sync(~0u, total.of[0], mask);
      total.of[1] += __shfl_xor_sync(~0u, total.of[1], mask);
    }
    return total;
  }

 private:
  static constexpr int kTogether = 4;  // blocks whose sums are read at once
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

// What a block leaves: its nonce; its share of the pairs, each with its row's maximum and sum.
template <int kRows, int kDepth>
struct Workspace {
  static constexpr int64_t kMost = Pairs<kRows, kDepth>::kMost;
  static constexpr int64_t kBlockBytes = (1 + kMost) * sizeof(float4);
  char* at;
  int blocks;
  int rank, cluster;  // this block's

  // What the block of this rank in a cluster left.
  __device__ uint64_t* nonce(int of) const {
    return reinterpret_cast<uint64_t*>(at + (of * cluster + rank) * sizeof(float4));
  }
  __device__ float4* pair(int of, int place) const {
    return reinterpret_cast<float4*>(at) + blocks + (of * cluster + rank) * kMost + place;
  }
};

// Where the warps' products meet: each in a free stage of its pipeline, `kRoom` bytes.
template <int kRows, int kDepth, int kWarps, int kRoom>
class WarpReduction {
 public:
  using Places = Pairs<kRows, kDepth>;
  static constexpr int kTiles = kRows / kTokenTile;
  // Warps whose sums are read at once. A loop of few is faster than straight code for all: code
  // that runs once is slow, and so is what does not fit into registers.
  static constexpr int kTogether = kRows > kLineTile || kDepth > 128 || kWarps < 4 ? 2 : 4;
  static constexpr int kRowsAt = kWarps * 16;  // after the stages' places
  static constexpr int kBytes = kRowsAt + kWarps * kRows * static_cast<int>(sizeof(float2));
  static_assert(kDepth * kRows * sizeof(float) <= kRoom, "a product fits into a stage");

  __device__ explicit WarpReduction(char* shared) : shared_(shared) {}

  // Leaves what this warp has.
  __device__ void publish(const RowMaxima<kRows>& maximum, const RowSums<kRows>& sum,
                          const ValueProduct<kDepth, kRows>& product, char* stage) {
    __syncwarp();  // all lanes have read the keys that lie there
    float4* const quads = reinterpret_cast<float4*>(stage) + lane();
    unrolled<kDepth / kRowTile, kTiles>([&](int d, int r) {
      const float (&four)[4] = product.at[d][r];
      quads[(d * kTiles + r) * kWarpLanes] = make_float4(four[0], four[2], four[1], four[3]);
    });
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      float total[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        total[j] = over_lines(sum.at[r][j], [](float a, float b) { return a + b; });
      }
      if (lane_line() == 0) {
        *reinterpret_cast<float4*>(row_of(warp_index(), r * kTokenTile + lane_quarter() * 2)) =
            make_float4(maximum.at[r][0], total[0], maximum.at[r][1], total[1]);
      }
    }
    if (lane() == 0) stage_of(warp_index()) = static_cast<int>(stage - shared_);
  }

  // What the warps have of a row's pair, or of several that lie so far apart; after a barrier.
  template <int kPairs = 1>
  __device__ Total<2 * kPairs> total(Places places, int pair, int apart = 0) const {
    const int row = places.row(pair);
    int at[kPairs];
    unrolled<kPairs>([&](int j) { at[j] = places.place(pair + j * apart); });
    Total<2 * kPairs> total;
    add_left<kTogether, true>(total, 0, kWarps - 1, [&](int warp) {
      const auto* const stage = reinterpret_cast<const float2*>(shared_ + stage_of(warp));
      const float2 sums = *row_of(warp, row);
      Total<2 * kPairs> left{{}, sums.x, sums.y};
      unrolled<kPairs>([&](int j) {
        const float2 two = stage[at[j]];
        left.of[2 * j] = two.x;
        left.of[2 * j + 1] = two.y;
      });
      return left;
    });
    return total;
  }

  // All pairs of a work tile become results, each by one thread of the block. Where it has several,
  // it adds two at a time: what belongs to their row is computed once, and neither waits for the
  // other. `wanted`: the thread's row has results.
  template <class After, class Row>
  __device__ void finish(Places places, const Row& result, bool wanted) const {
    constexpr int kThreads = kWarps * kWarpLanes;
    static_assert(kThreads % kRows == 0, "a thread's pairs are of one row");
    const auto use = [&](int pair, const Total<2>& total) {
      if (!wanted) return;
      result.template take<After>({places.row(pair), places.depth(pair)}, total);
    };
    int pair = threadIdx.x;
#pragma unroll 1
    for (; pair + kThreads < places.count(); pair += 2 * kThreads) {
      const auto both = total<2>(places, pair, kThreads);
      use(pair, {{both.of[0], both.of[1]}, both.maximum, both.sum});
      use(pair + kThreads, {{both.of[2], both.of[3]}, both.maximum, both.sum});
    }
    if (pair < places.count()) use(pair, total(places, pair));
  }

 private:
  __device__ int& stage_of(int warp) const { return reinterpret_cast<int*>(shared_)[warp]; }
  __device__ float2* row_of(int warp, int row) const {
    return reinterpret_cast<float2*>(shared_ + kRowsAt) + warp * kRows + row;
  }

  char* shared_;
};

// Where a block has what: in registers, or where in shared memory.
// The warps' pipelines, what warps and then blocks of a cluster reduce, the resident queries.
template <class T, int kDepth, class Knobs, int kMore>
struct FlashDecodeLayout {
  static constexpr int kRows = Knobs::kRows;
  using Pipeline = KeyPipeline<T, kDepth, Knobs, kMore>;
  using Reduction = WarpReduction<kRows, kDepth, Knobs::kWarps, Pipeline::kStageBytes>;
  using Cluster = ClusterReduction<kRows, kDepth>;

  static constexpr int kKeyWork = kKeyWorkOf<Knobs>;
  // A warp has no registers for keys that it computes with, for long ones that it sums too, or for
  // latents; nor for long queries while the first copies start.
  static constexpr bool kReadsLate = kMore > 0 || kKeyWork == 2 || (kKeyWork == 1 && kDepth > 192);
  static constexpr bool kReadsQueriesLate = kReadsLate || kDepth > 128;
  // Clusters whose sums are read at once.
  static constexpr int kTogether = kDepth > 128 && kMore == 0 ? 4 : kRows == kLineTile ? 16 : 8;

  // Few rows stay in registers, more lie in shared memory for all warps.
  static constexpr bool kResidentInShared = kRows * kDepth > 1024;
  static constexpr int kReductionAt = Pipeline::kBytes;
  static constexpr int kClusterAt = (kReductionAt + Reduction::kBytes + 15) / 16 * 16;
  static constexpr int kResidentAt = (kClusterAt + Cluster::kBytes + 127) / 128 * 128;
  static constexpr int kMoreResidentAt = kResidentAt + kRows * SharedLines<T, kDepth>::kPitch;
  static constexpr bool kHasResident =
      kResidentInShared || kKeyWork > 0;  // partitioned rows pass there
  static constexpr int kBytes =
      kHasResident ? kMoreResidentAt + kRows * SharedLines<T, kMore>::kPitch : kResidentAt;
};

}  // namespace mirage::tile
