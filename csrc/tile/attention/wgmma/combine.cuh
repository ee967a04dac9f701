// The end of a work item of many query rows: what warps have comes together, and becomes results.
//
// The last group of warpgroups gets what the others have. A work tile that is all its block's is
// finished from registers. Blocks of a cluster send each other slices of rows and finish a slice
// each; otherwise what blocks leave goes through the workspace.
#pragma once

#include "tile/attention/wgmma/pipeline.cuh"
#include "tile/attention/wgmma/reduction.cuh"

namespace mirage::tile {

// Copies into the shared memory of a block of the cluster, and counts what has landed there.
__device__ inline void copy_to_block(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(shared_address(from)), "r"(bytes), "r"(barrier)
      : "memory");
}

template <class T, int kDepth, class Knobs>
class WgmmaCombine {
 public:
  using Pipeline = WgmmaPipeline<T, kDepth, Knobs>;
  using Left = LeftRows<kDepth>;
  static constexpr int kRows = Knobs::kRows, kGroups = Pipeline::kGroups;
  static constexpr int kSentBytes = kRows * Left::kPitch * 4;
  static constexpr int kBytes = kGroups * kSentBytes;
  // What the others of a cluster send to a block. A cluster is a power of two: a division would be
  // thirty instructions in a chain at the kernel's start.
  __device__ static int sent_bytes() {
    return kSentBytes - (kSentBytes >> (__ffs(cluster_size()) - 1));
  }

  // `left` is where others send to, and behind that where groups leave their sums.
  __device__ WgmmaCombine(const AttentionArgs& args, const ItemEntry& entry, char* pipeline,
                          float* left)
      : args_(args),
        entry_(entry),
        item_(entry.item),
        pipeline_(pipeline),
        left_(left),
        rows_(entry.item.template rows<kRows>(args)) {}

  // After::of(..) for all elements of the item's work tile, by the block that finishes it.
  // `arrived` counts what a cluster sends.
  template <class After>
  __device__ void finish(WgmmaMaxima<kDepth>& maximum, WgmmaProduct<kDepth>& product,
                         Mbarrier& arrived) const {
    merge(maximum, product);
    if (cluster_size() > 1) {
      share<After>(maximum, product, arrived);
      return;
    }
    if (item_.first == 0 && entry_.last_block == blockIdx.x) {
      if (has_sums()) finish_lines<After>(maximum, product);
    } else {
      if (has_sums()) publish(left_, maximum, product);
      Pipeline::sync_consumers();
      item_.first > 0 ? contribute() : finish_all<After>();
    }
    Pipeline::sync_consumers();  // what was left has been read
  }

 private:
  using Maxima = WgmmaMaxima<kDepth>;
  using Product = WgmmaProduct<kDepth>;
  using Space = WgmmaSpace<kRows, kDepth>;
  static constexpr int kThreads = Pipeline::kConsumers * kWarpLanes, kLanes = kThreads / kGroups;
  static constexpr int kQuads = kDepth / kTokenTile;  // of a lane's product
  static constexpr int kTogether = 2;                 // items whose sums are read at once

  __device__ static bool has_sums() { return Pipeline::group() == kGroups - 1; }

  __device__ float4* room_of(int group) const {
    float* const first = left_ + (group + 1) * kRows * Left::kPitch;
    return reinterpret_cast<float4*>(first) + threadIdx.x % kLanes;
  }
  __device__ void merge(Maxima& maximum, Product& product) const {
    if constexpr (kGroups == 1) return;
    if (!has_sums()) {
      float4* const to = room_of(Pipeline::group());
#pragma unroll
      for (int n = 0; n < kQuads; ++n) {
        const float* four = product.at[n / 8][n % 8];
        to[n * kLanes] = make_float4(four[0], four[1], four[2], four[3]);
      }
      to[kQuads * kLanes] =
          make_float4(maximum.at[0][0], product.sums[0], maximum.at[0][1], product.sums[2]);
    }
    Pipeline::sync_consumers();
    if (!has_sums()) return;
#pragma unroll
    for (int g = 0; g < kGroups - 1; ++g) add_group(maximum, product, room_of(g));
  }
  __device__ static void add_group(Maxima& maximum, Product& product, const float4* from) {
    const float4 rows = from[kQuads * kLanes];
    const float theirs[2] = {rows.x, rows.z}, sums[2] = {rows.y, rows.w};
    float own[2], other[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float higher = fmaxf(maximum.at[0][i], theirs[i]);
      own[i] = fast_exp(maximum.at[0][i] - higher);
      other[i] = fast_exp(theirs[i] - higher);
      maximum.at[0][i] = higher;
      product.sums[2 * i] = product.sums[2 * i] * own[i] + sums[i] * other[i];
    }
#pragma unroll
    for (int n = 0; n < kQuads; ++n) {
      const float4 four = from[n * kLanes];
      float* const to = product.at[n / 8][n % 8];
      to[0] = to[0] * own[0] + four.x * other[0];
      to[1] = to[1] * own[0] + four.y * other[0];
      to[2] = to[2] * own[1] + four.z * other[1];
      to[3] = to[3] * own[1] + four.w * other[1];
    }
  }

  // take(d, pair) for the two neighbours of each pair that a lane has of its line i.
  template <class Take>
  __device__ static void for_each_pair(int i, const Product& product, Take take) {
#pragma unroll
    for (int n = 0; n < kQuads; ++n) {
      take(n * kTokenTile + lane_quarter() * 2, &product.at[n / 8][n % 8][2 * i]);
    }
  }

  // Leaves the sums among the block's rows.
  __device__ void publish(float* at, const Maxima& maximum, const Product& product) const {
    const Left left{at, kRows};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* const to = left.row(0, Pipeline::row_of(i));
      for_each_pair(i, product, [&](int d, const float* pair) {
        *reinterpret_cast<float2*>(to + d) = make_float2(pair[0], pair[1]);
      });
      if (lane_quarter() == 0) {
        *reinterpret_cast<float2*>(to + kDepth) =
            make_float2(maximum.at[0][i], product.sums[2 * i]);
      }
    }
  }

  // The results of a work tile of which nobody else has keys, from the lanes that have its sums.
  template <class After>
  __device__ void finish_lines(const Maxima& maximum, const Product& product) const {
    WgmmaResults<T, kRows> results(args_, item_);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = Pipeline::row_of(i);
      if (row >= rows_) continue;
      float factor;
      const Divisor sum =
          results.begin(row, maximum.at[0][i], product.sums[2 * i], lane_quarter() == 0, factor);
      for_each_pair(i, product, [&](int d, const float* pair) {
        After::of(results, {row, d}, sum, pair[0] * factor);
        After::of(results, {row, d + 1}, sum, pair[1] * factor);
      });
    }
  }

  template <class Take>
  __device__ static void for_each(int rows, Take take) {
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < rows * kDepth; i += kThreads * 4) {
      const int row = static_cast<unsigned>(i) / kDepth;
      take(RowElement{row, i - row * kDepth});
    }
  }

  __device__ Space space() const {
    return {static_cast<char*>(args_.workspace), static_cast<int>(gridDim.x)};
  }

  __device__ void contribute() const {
    const int block = blockIdx.x;
    const Left left{left_, kRows};
    for_each(rows_, [&](RowElement e) {
      const typename Left::Four own{left, e};
      *space().values(block, e) = own.values(0);
      if (e.d == 0) {
        const float2 sums = own.sums(0);
        *space().sums(block, e.row) = make_float4(sums.x, sums.y, 0.0f, 0.0f);
      }
    });
    Pipeline::sync_consumers();
    if (threadIdx.x == 0) announce(space().nonce(block), args_.nonce);
  }

  template <class After>
  __device__ void finish_all() const {
    const int first = blockIdx.x + 1, last = entry_.last_block;
    for (int i = first + threadIdx.x; i <= last; i += kThreads) {
      await(space().nonce(i), args_.nonce);
    }
    Pipeline::sync_consumers();
    const Left left{left_, kRows};
    WgmmaResults<T, kRows> results(args_, item_);
    for_each(rows_, [&](RowElement e) {
      WgmmaTotal total;
      add_left<1>(total, typename Left::Four{left, e}, 0, 0);
      add_left<kTogether>(total, LeftByBlocks<Space>{space(), e}, first, last);
      results.template take<After>(e, total);
    });
  }

  // Every block of a cluster finishes some of the rows, which the others send to it from room that
  // nobody sends to: what a group left, or the pipeline.
  template <class After>
  __device__ void share(const Maxima& maximum, const Product& product, Mbarrier& arrived) const {
    const int cluster = cluster_size(), rows = kRows / cluster, rank = cluster_rank();
    float* const out =
        kGroups > 1 ? left_ + kRows * Left::kPitch : reinterpret_cast<float*>(pipeline_);
    const Left left{left_, rows};
    if (has_sums()) {
      sync_group();
      publish(out, maximum, product);
      fence_proxies();
    }
    Pipeline::sync_consumers();
    wait_cluster();
    const int owner = static_cast<int>(threadIdx.x) - (kThreads - kLanes);
    if (owner >= 0 && owner < cluster && owner != rank) {
      copy_to_block(map_to_block(left.row(rank, 0), owner), Left{out, kRows}.row(0, owner * rows),
                    rows * Left::kPitch * 4, map_to_block(&arrived, owner));
    }
    wait_for_dsmem_stores(arrived, 0);
    __syncwarp();
    arrive_cluster();
    const int first = rank * rows;
    WgmmaResults<T, kRows> results(args_, item_);
    for_each(min(rows, rows_ - first), [&](RowElement e) {
      WgmmaTotal total;
      const LeftInCluster<kDepth> items{left, Left{out + first * Left::kPitch, rows}, rank, e};
      add_left<kTogether>(total, items, 0, cluster - 1);
      results.template take<After>({first + e.row, e.d}, total);
    });
    __syncwarp();
    wait_cluster();  // others may still read what was left here
  }
  // A barrier of the warps that have sums.
  __device__ static void sync_group() {
    kGroups > 1 ? sync_warpgroup() : Pipeline::sync_consumers();
  }

  const AttentionArgs& args_;
  const ItemEntry& entry_;
  const WorkItem& item_;
  char* const pipeline_;
  float* const left_;
  const int rows_;
};

}  // namespace mirage::tile
