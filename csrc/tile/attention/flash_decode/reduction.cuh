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

// Of one pair, what clusters left in the workspace.
template <class Space>
struct LeftByClusters {
  Space space;
  int place;
  __device__ Total of(int cluster) const { return Total(__ldcg(space.pair(cluster, place))); }
};

// Tells the cluster that finishes the work tile; the other threads' writes were before a barrier.
__device__ inline void announce(uint64_t* at, uint64_t nonce) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(nonce) : "memory");
}

__device__ inline void await(uint64_t* at, uint64_t nonce) {
  uint64_t found = 0;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(at) : "memory");
  } while (found != nonce);
  *at = 0;
}

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

  // What the warps have of a pair; after a barrier.
  __device__ Total total(Places places, int pair) const {
    Total total;
    add_left<kTogether, true>(total, Left{*this, places.row(pair), places.place(pair)}, 0,
                              kWarps - 1);
    return total;
  }

  // All pairs of a work tile become results, each by one thread of the block. Where it has several,
  // it adds two at a time: what belongs to their row is computed once, and neither waits for the
  // other. `wanted`: the thread's row has results.
  template <class After, class Row>
  __device__ void finish(Places places, const Row& result, bool wanted) const {
    constexpr int kThreads = kWarps * kWarpLanes;
    static_assert(kThreads % kRows == 0, "a thread's pairs are of one row");
    const auto use = [&](int pair, const Total& total) {
      if (!wanted) return;
      result.template take<After>({places.row(pair), places.depth(pair)}, total);
    };
    int pair = threadIdx.x;
#pragma unroll 1
    for (; pair + kThreads < places.count(); pair += 2 * kThreads) {
      Total totals[2];
      add_two(totals, places, pair, pair + kThreads);
      use(pair, totals[0]);
      use(pair + kThreads, totals[1]);
    }
    if (pair < places.count()) use(pair, total(places, pair));
  }

 private:
  __device__ void add_two(Total (&totals)[2], Places places, int one, int other) const {
    const int row = places.row(one), at[2] = {places.place(one), places.place(other)};
#pragma unroll 1
    for (int first = 0; first < kWarps; first += kTogether) {
      float2 rows[kTogether], items[kTogether][2];
      float maximum = totals[0].maximum;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const auto* const stage = reinterpret_cast<const float2*>(shared_ + stage_of(first + i));
        rows[i] = *row_of(first + i, row);
#pragma unroll
        for (int j = 0; j < 2; ++j) items[i][j] = stage[at[j]];
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) maximum = fmaxf(maximum, rows[i].x);
      const float before = fast_exp(totals[0].maximum - maximum);
      totals[0].scale(before);
      totals[1].scale(before);
      totals[0].maximum = totals[1].maximum = maximum;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float factor = fast_exp(rows[i].x - maximum);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          totals[j].sum += rows[i].y * factor;
          totals[j].of[0] += items[i][j].x * factor;
          totals[j].of[1] += items[i][j].y * factor;
        }
      }
    }
  }

  struct Left {
    const WarpReduction& reduction;
    int row, place;
    __device__ Total of(int warp) const {
      const char* const stage = reduction.shared_ + reduction.stage_of(warp);
      return {reinterpret_cast<const float2*>(stage)[place], *reduction.row_of(warp, row)};
    }
  };
  __device__ int& stage_of(int warp) const { return reinterpret_cast<int*>(shared_)[warp]; }
  __device__ float2* row_of(int warp, int row) const {
    return reinterpret_cast<float2*>(shared_ + kRowsAt) + warp * kRows + row;
  }

  char* shared_;
};

}  // namespace mirage::tile
