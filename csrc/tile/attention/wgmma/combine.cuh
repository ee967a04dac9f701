// The end of a work item of many query rows: what warps have comes together, and becomes results.
//
// The last group of warpgroups gets what the others have. A work tile that is all its block's is
// finished from registers. Blocks of a cluster send each other slices of rows and finish a slice
// each; otherwise, as in flash_decode/reduction.cuh, the block that has a work tile's first key
// block finishes it, and the others leave what they have in the workspace. Here four elements of a
// row go together.
#pragma once

#include "tile/attention/combine.cuh"
#include "tile/attention/wgmma/pipeline.cuh"

namespace mirage::tile {

// Copies into the shared memory of a block of the cluster, and counts what has landed there.
__device__ inline void copy_to_block(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(shared_address(from)), "r"(bytes), "r"(barrier)
      : "memory");
}

// What a block leaves: its nonce; per row its maximum and sum; the product [rows, D].
template <int kRows, int kDepth>
struct WgmmaSpace {
  static constexpr int64_t kRowFloats = kDepth + 4;  // the last four: maximum, sum
  static constexpr int64_t kBlockBytes = sizeof(float4) + kRows * kRowFloats * sizeof(float);
  char* at;
  int blocks;

  __device__ uint64_t* nonce(int block) const {
    return reinterpret_cast<uint64_t*>(at + block * sizeof(float4));
  }
  __device__ float* row(int block, int row) const {
    float* const first = reinterpret_cast<float*>(at + blocks * sizeof(float4));
    return first + (static_cast<int64_t>(block) * kRows + row) * kRowFloats;
  }
};

// Rows in shared memory: of some items, `rows` each; product, then maximum and sum.
template <int kDepth>
struct LeftRows {
  static constexpr int kPitch = kDepth + 8;  // floats; lines of eight rows use all banks
  float* at;
  int rows;

  __device__ float* row(int item, int row) const { return at + (item * rows + row) * kPitch; }
};

// Four elements of a row, and its maximum and sum, which follow the product.
template <int kDepth, class Read>
__device__ Total<4> four_of(const float* row, int d, Read read) {
  const float2 sums = read(reinterpret_cast<const float2*>(row + kDepth));
  const float4 four = read(reinterpret_cast<const float4*>(row + d));
  return {{four.x, four.y, four.z, four.w}, sums.x, sums.y};
}
template <int kDepth>
__device__ Total<4> four_of(const float* row, int d) {
  return four_of<kDepth>(row, d, [](const auto* at) { return *at; });
}

// The rows of a work tile as what comes after the combination sees them.
template <class T, int kRows>
class WgmmaResults {
 public:
  __device__ WgmmaResults(const AttentionArgs& args, const WorkTile& work_tile)
      : args_(args),
        work_tile_(work_tile),
        pairs_(
            ((reinterpret_cast<uintptr_t>(args.out) / sizeof(T) | args.out_token | args.out_head) &
             1) == 0) {}

  // Elements come in pairs.
  __device__ void store(RowElement e, float value) const {
    if (e.d % 2 == 0) {
      even_ = value;
    } else if (pairs_) {
      *reinterpret_cast<Pair<T>*>(at_.out + e.d - 1) = from_floats<T>(make_float2(even_, value));
    } else {
      at_.out[e.d - 1] = cast<T>(even_);
      at_.out[e.d] = cast<T>(value);
    }
  }

  // Turns to a row; see ResultRow.
  __device__ Divisor begin(int row, float maximum, float sum, bool leads, float& factor) {
    at_ = ResultRow<T>(args_, work_tile_.template place<kRows>(args_, row));
    return at_.divisor(maximum, sum, leads, factor);
  }

  // After::of(rows, element, sum, product) for four elements of a row.
  template <class After>
  __device__ void take(RowElement e, const Total<4>& total) {
    float factor;
    const Divisor sum = begin(e.row, total.maximum, total.sum, e.d == 0, factor);
    unrolled<4>([&](int i) { After::of(*this, {e.row, e.d + i}, sum, total.of[i] * factor); });
  }

 private:
  const AttentionArgs& args_;
  const WorkTile& work_tile_;
  bool pairs_;  // of elements lie as such in memory
  ResultRow<T> at_;
  mutable float even_ = 0.0f;
};

// The results of a work tile of which nobody else has keys, from the lanes that have its sums: a
// product's columns are elements from `first` on.
template <class After, class Pipeline, class T, int kRows, int kColumns>
__device__ void finish_lines(const AttentionArgs& args, const WorkTile& work_tile, int rows,
                             const WgmmaMaxima<kColumns>& maximum,
                             const WgmmaProduct<kColumns>& product, int first) {
  WgmmaResults<T, kRows> results(args, work_tile);
  unrolled<2>([&](int i) {
    const int row = Pipeline::row_of(i);
    if (row >= rows) return;
    float factor;
    const bool leads = first == 0 && lane_quarter() == 0;
    const Divisor sum = results.begin(row, maximum.at[0][i], product.sums()[2 * i], leads, factor);
    unrolled<kColumns / kTokenTile, 2>([&](int n, int j) {
      const int d = first + n * kTokenTile + lane_quarter() * 2 + j;
      After::of(results, {row, d}, sum, product.at[n][2 * i + j] * factor);
    });
  });
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
      if (has_sums())
        finish_lines<After, Pipeline, T, kRows>(args_, item_, rows_, maximum, product, 0);
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
      unrolled<kQuads>([&](int n) {
        const float* four = product.at[n];
        to[n * kLanes] = make_float4(four[0], four[1], four[2], four[3]);
      });
      to[kQuads * kLanes] =
          make_float4(maximum.at[0][0], product.sums()[0], maximum.at[0][1], product.sums()[2]);
    }
    Pipeline::sync_consumers();
    if (!has_sums()) return;
    unrolled<kGroups - 1>([&](int g) { add_group(maximum, product, room_of(g)); });
  }
  __device__ static void add_group(Maxima& maximum, Product& product, const float4* from) {
    const float4 rows = from[kQuads * kLanes];
    const float theirs[2] = {rows.x, rows.z}, sums[2] = {rows.y, rows.w};
    float own[2], other[2];
    unrolled<2>([&](int i) {
      const float higher = fmaxf(maximum.at[0][i], theirs[i]);
      own[i] = near_exp(maximum.at[0][i] - higher);
      other[i] = near_exp(theirs[i] - higher);
      maximum.at[0][i] = higher;
      product.sums()[2 * i] = product.sums()[2 * i] * own[i] + sums[i] * other[i];
    });
    unrolled<kQuads>([&](int n) {
      const float4 four = from[n * kLanes];
      float* const to = product.at[n];
      to[0] = to[0] * own[0] + four.x * other[0];
      to[1] = to[1] * own[0] + four.y * other[0];
      to[2] = to[2] * own[1] + four.z * other[1];
      to[3] = to[3] * own[1] + four.w * other[1];
    });
  }

  // take(d, pair) for the two neighbours of each pair that a lane has of its line i.
  template <class Take>
  __device__ static void for_each_pair(int i, const Product& product, Take take) {
    unrolled<kQuads>(
        [&](int n) { take(n * kTokenTile + lane_quarter() * 2, &product.at[n][2 * i]); });
  }

  // Leaves the sums among the block's rows.
  __device__ void publish(float* at, const Maxima& maximum, const Product& product) const {
    const Left left{at, kRows};
    unrolled<2>([&](int i) {
      float* const to = left.row(0, Pipeline::row_of(i));
      for_each_pair(i, product, [&](int d, const float* pair) {
        *reinterpret_cast<float2*>(to + d) = make_float2(pair[0], pair[1]);
      });
      if (lane_quarter() == 0) {
        *reinterpret_cast<float2*>(to + kDepth) =
            make_float2(maximum.at[0][i], product.sums()[2 * i]);
      }
    });
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
    for_each(rows_, [&](RowElement e) {
      const float* const from = Left{left_, kRows}.row(0, e.row);
      float* const to = space().row(block, e.row);
      reinterpret_cast<float4&>(to[e.d]) = reinterpret_cast<const float4&>(from[e.d]);
      if (e.d == 0) {
        const auto sums = reinterpret_cast<const float2&>(from[kDepth]);
        reinterpret_cast<float4&>(to[kDepth]) = make_float4(sums.x, sums.y, 0.0f, 0.0f);
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
      Total<4> total;
      add_left<1, true>(total, 0, 0, [&](int) { return four_of<kDepth>(left.row(0, e.row), e.d); });
      add_left<kTogether, false>(total, first, last, [&](int block) {
        const auto read = [](const auto* at) { return __ldcg(at); };
        return four_of<kDepth>(space().row(block, e.row), e.d, read);
      });
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
    wait_at_most([&] { return have_dsmem_stores_completed(arrived, 0); });
    __syncwarp();
    arrive_cluster();
    const int first = rank * rows;
    WgmmaResults<T, kRows> results(args_, item_);
    for_each(min(rows, rows_ - first), [&](RowElement e) {
      Total<4> total;
      add_left<kTogether, false>(total, 0, cluster - 1, [&](int item) {
        const float* const own = Left{out, kRows}.row(0, first + e.row);
        return four_of<kDepth>(item == rank ? own : left.row(item, e.row), e.d);
      });
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
