// The end of a work item over latents, and the kernel that adds up what blocks left.
//
// Blocks that waited for others had to be few, or two calls might wait for each other's places: so
// the rows of work tiles that lie in several blocks are finished by a second kernel, once all of
// them are done. (With clusters that finished the rows of a work tile, 8 sequences of 4096 keys and
// 128 heads took 45 us, now 38.)
#pragma once

#include "tile/attention/wgmma/combine.cuh"

namespace mirage::tile {

// What blocks leave in the workspace: of every work tile, in which blocks it lies; of every block
// twice, for the work tile that it begins and for one that another block began, per row the
// product, and then its maximum and sum. Of 16 elements of a row the pairs lie as lanes have them:
// 0, 4, 1, 5, ..
template <int kDepth>
class LatentSpace {
 public:
  static constexpr int kQuads = kDepth / 4;  // of a row

  __host__ __device__ explicit LatentSpace(const AttentionArgs& args, int most_rows)
      : at_(static_cast<char*>(args.workspace)),
        tiles_(static_cast<int>(args.sequence_work_tiles.value) * args.B),
        rows_(most_rows < args.q_len * args.G ? most_rows : args.q_len * args.G) {}

  int64_t bytes(int64_t blocks) const {
    return tiles_ * kVec16Bytes + 2 * blocks * rows_ * (kQuads + 1) * kVec16Bytes;
  }

  struct Parts {
    int first, blocks;  // none: the work tile is finished
  };
  __device__ Parts& parts(int tile) const {
    return reinterpret_cast<Parts&>(reinterpret_cast<float4*>(at_)[tile]);
  }
  // Its quads, then maximum and sum.
  __device__ float4* row(int block, bool begins, int row) const {
    const int64_t line = static_cast<int64_t>(2 * block + begins) * rows_ + row;
    return reinterpret_cast<float4*>(at_) + tiles_ + line * (kQuads + 1);
  }

 private:
  char* at_;
  int tiles_, rows_;
};

// The place of a work tile among all of them.
__device__ inline int tile_index(const AttentionArgs& args, const WorkTile& tile) {
  const int heads = tile.b * args.Hkv + tile.head;
  return heads * (static_cast<int>(args.sequence_work_tiles.value) / args.Hkv) + tile.tile;
}

// The end of a work item: a work tile that is all its block's is finished from registers, others
// leave their sums.
template <class T, int kDepth, class Pipeline, int kRows>
class LatentEnd {
 public:
  static constexpr int kColumns = kDepth / Pipeline::kParts;
  using Maxima = WgmmaMaxima<kColumns>;
  using Product = WgmmaProduct<kColumns>;
  using Space = LatentSpace<kDepth>;

  __device__ LatentEnd(const AttentionArgs& args, const ItemEntry& entry)
      : args_(args), entry_(entry), rows_(entry.item.template rows<kRows>(args)) {}

  __device__ static int part() { return warp_index() / kGroupWarps; }

  template <class After>
  __device__ void finish(const Maxima& maximum, const Product& product) const {
    const int block = blockIdx.x, others = entry_.last_block - block;
    const bool begins = entry_.item.first == 0, whole = begins && others == 0;
    const Space space(args_, kRows);
    if (begins && threadIdx.x == 0) {
      space.parts(tile_index(args_, entry_.item)) = {block, whole ? 0 : others + 1};
    }
    if (whole) {
      const int first = part() * kColumns;
      finish_lines<After, Pipeline, T, kRows>(args_, entry_.item, rows_, maximum, product, first);
    } else {
      leave(space, begins, maximum, product);
    }
  }

 private:
  __device__ void leave(const Space& space, bool begins, const Maxima& maximum,
                        const Product& product) const {
    unrolled<2>([&](int i) {
      const int row = Pipeline::row_of(i);
      if (row >= rows_) return;
      float4* const to = space.row(blockIdx.x, begins, row);
      unrolled<kColumns / kRowTile>([&](int n) {
        const auto &low = product.at[2 * n], &high = product.at[2 * n + 1];
        to[part() * (kColumns / 4) + n * 4 + lane_quarter()] =
            make_float4(low[2 * i], low[2 * i + 1], high[2 * i], high[2 * i + 1]);
      });
      if (part() == 0 && lane_quarter() == 0)
        to[Space::kQuads] = make_float4(maximum.at[0][i], product.sums()[2 * i], 0.0f, 0.0f);
    });
  }

  const AttentionArgs& args_;
  const ItemEntry& entry_;
  const int rows_;
};

// Some rows of a work tile that lies in several blocks.
template <class Work, class After>
class LatentCombine {
 public:
  static constexpr int kThreads = 256;
  static constexpr int kRows = Work::kRows, kDepth = Work::kDepth;
  using T = typename Work::Element;
  using Space = typename Work::Space;

  __device__ explicit LatentCombine(const AttentionArgs& args) : args_(args), space_(args, kRows) {
    tile_.b = quotient(blockIdx.x, args.sequence_work_tiles);
    const unsigned tile = blockIdx.x - tile_.b * args.sequence_work_tiles.value;
    const unsigned tiles = args.sequence_work_tiles.value / args.Hkv;
    tile_.head = tile / tiles;
    tile_.tile = tile - tile_.head * tiles;
    tile_.sequence = sequence<kRows>(args, tile_.b);
  }

  // Blocks for the rows of a work tile: two in all for each multiprocessor.
  static int64_t row_blocks(const AttentionArgs& args, int64_t tiles) {
    const int64_t all = static_cast<int64_t>(args.q_len) * args.G, rows = all < kRows ? all : kRows;
    return ceil_div(rows, ceil_div(rows * tiles, 2 * int64_t{args.multiprocessors}));
  }

  __device__ void run() const {
    // Within what there is, even if lengths were written meanwhile.
    auto parts = space_.parts(blockIdx.x);
    const int blocks = static_cast<int>(args_.clusters.value);
    parts.first = max(0, min(parts.first, blocks - 1));
    parts.blocks = min(parts.blocks, blocks - parts.first);
    if (tile_.tile >= tile_.sequence.tiles || parts.blocks <= 0) return;
    const int all = tile_.template rows<kRows>(args_);
    const int each = (all + gridDim.y - 1) / gridDim.y, first = blockIdx.y * each;
    const int quads = (min(first + each, all) - first) * Space::kQuads;
    WgmmaResults<T, kRows> results(args_, tile_);
#pragma unroll 1
    for (int i = threadIdx.x; i < quads; i += kThreads) {
      const int row = first + i / Space::kQuads, quad = i % Space::kQuads;
      Total<4> total;
      add_left<kTogether, false>(total, 0, parts.blocks - 1, [&](int part) {
        const float4* const from = space_.row(parts.first + part, part == 0, row);
        const float4 four = __ldcg(from + quad), sums = __ldcg(from + Space::kQuads);
        return Total<4>{{four.x, four.y, four.z, four.w}, sums.x, sums.y};
      });
      store(results, row, quad, total);
    }
  }

 private:
  static constexpr int kTogether = 16;  // parts that are read at once

  __device__ static void store(WgmmaResults<T, kRows>& results, int row, int quad,
                               const Total<4>& total) {
    const int d = quad / 4 * kRowTile + quad % 4 * 2;
    float factor;
    const Divisor sum = results.begin(row, total.maximum, total.sum, d == 0, factor);
    unrolled<4>([&](int j) {
      After::of(results, {row, d + j / 2 * kTokenTile + j % 2}, sum, total.of[j] * factor);
    });
  }

  const AttentionArgs& args_;
  const Space space_;
  WorkTile tile_{};
};

template <class Work, class After>
__global__ void __launch_bounds__(LatentCombine<Work, After>::kThreads)
    combine_latents(const __grid_constant__ AttentionArgs args) {
  launch_dependents();
  grid_dependency_wait();
  LatentCombine<Work, After>(args).run();
}

}  // namespace mirage::tile
