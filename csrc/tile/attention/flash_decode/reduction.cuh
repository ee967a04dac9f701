// After a work item: the warps of a block meet, then the clusters that share a work tile.
//
// Every warp has sums relative to a maximum of its own. The cluster that has a work tile's first
// key block finishes it; it is the cluster's last item. The others, whose first item it is, leave
// what they have in the workspace and say so by the call's nonce, a number that memory does not
// hold by chance: each block its share of the elements, to the block of the same rank. The
// finishing cluster adds up in the order of the clusters, the same in every run, and wipes out the
// nonces, so that a graph may be replayed. It waits for clusters that need not wait for it.
#pragma once

#include "tile/attention/flash_decode/cluster.cuh"

namespace mirage::tile {

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

// The sum that a row's products are divided by.
struct Divisor {
  float inverse;
};
__device__ inline float div(float a, Divisor b) { return a * b.inverse; }

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
#pragma unroll
    for (int d = 0; d < kDepth / kRowTile; ++d) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        const float (&four)[4] = product.at[d][r];
        quads[(d * kTiles + r) * kWarpLanes] = make_float4(four[0], four[2], four[1], four[3]);
      }
    }
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
