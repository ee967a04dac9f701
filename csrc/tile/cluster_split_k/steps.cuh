// The consumer loops of cluster split-K blocks: one warpgroup transforms tokens, others multiply.
#pragma once

#include "tile/cluster_split_k/block.cuh"
#include "tile/work.cuh"

namespace mirage::tile {

// A step for a transforming warp: a quarter of the tokens. Lane 8 q + l has vector q of every chunk
// of line l, so that eight lanes read eight lines without bank conflicts.
template <class Block>
struct TransformStep {
  using T = typename Block::T;
  static constexpr int kOwnTokens = Block::kTokens / kGroupWarps;
  using Tokens = TokenFrag<T, kOwnTokens, kTmaDepth>;
  Block block;
  int stage, tma, k;

  __device__ char* vec(int i, int c) const {
    const int line = warp_index() % kGroupWarps * kOwnTokens + i * kLineTile + lane() % kLineTile;
    return block.buffer(stage, tma).tokens() +
           swizzled_offset(line, c * kChunkVectors + lane() / kLineTile);
  }

  __device__ Tokens tokens() const {
    return filled<Tokens>(
        [&](int i, int c) { return *reinterpret_cast<const Vec16<T>*>(vec(i, c)); });
  }

  __device__ DepthFrag<T, kTmaDepth> vector(int i) const {
    const char* from = block.shared + Block::kVectorsAt + i * Block::kVectorBytes;
    return filled<DepthFrag<T, kTmaDepth>>([&](int, int c) {
      const int at = k + c * kChunkDepth + lane() / kLineTile * kLaneDepth;
      return *reinterpret_cast<const Vec16<T>*>(from + at * sizeof(T));
    });
  }

  // Replaces the copied tokens; the products read these.
  __device__ void rewrite(const Tokens& tokens) const {
    unrolled<kOwnTokens / kLineTile, kTmaDepth / kChunkDepth>([&](int i, int c) {
      *reinterpret_cast<uint4*>(vec(i, c)) = reinterpret_cast<const uint4&>(tokens.at[i][c]);
    });
    fence_proxies();
  }
};

// A step for a multiplying warpgroup: its rows, all tokens. In registers a lane has the A operand:
// of every 16 k the pairs 2t, 2t + 1 and 2t + 8, 2t + 9.
template <class Block>
struct ConsumerStep {
  using T = typename Block::T;
  using Rows = RowFrag<T, Block::kTiles * kRowTile, kTmaDepth>;
  Block block;
  int stage, tma, k;

  __device__ RowTma<T> row_tma(int i) const {
    return {block.buffer(stage, tma).rows(i) + block.own_row() * kTmaRowBytes};
  }

  __device__ TokenTma<T> token_tma() const { return {block.buffer(stage, tma).tokens()}; }

  __device__ Rows rows(int i) const {
    Rows rows;
    const uint32_t first = shared_address(row_tma(i).at);
    const int line = warp_index() % kGroupWarps * kRowTile + lane() % kRowTile;
    unrolled<Block::kTiles, kMmas>([&](int r, int m) {
      const int vec = 2 * m + lane() / kRowTile;
      load_operand(rows.at[2 * r][m / 2], rows.at[2 * r + 1][m / 2], m,
                   first + r * kGroupRows * kTmaRowBytes + swizzled_offset(line, vec));
    });
    return rows;
  }

  __device__ DepthFrag<T, kTmaDepth> vector(int i) const {
    return load_vector<T, kTmaDepth>(block.shared + Block::kVectorsAt + i * Block::kVectorBytes +
                                     k * sizeof(T));
  }
};

// Before the loop: the previous kernel has ended, and the other block's barriers are there.
template <class Block>
__device__ void wait_for_cluster_start(Block) {
  grid_dependency_wait();
  wait_cluster();
}

// body(step) for all steps of this block's part of the depth.
template <class Block, class Body>
__device__ void transform_tokens(Block block, bool reads_vectors, Body body) {
  wait_for_cluster_start(block);
  if (reads_vectors) wait(block.vectors_full(), 0);
  typename Block::Place place;
#pragma unroll 1
  for (int step = 0; step < Block::kSteps; ++step) {
    wait(block.full(place.stage), place.parity);
    unrolled<Block::kTmaTiles>([&](int b) {
      body(TransformStep<Block>{block, place.stage, b, block.part_k(step) + b * kTmaDepth});
    });
    __syncwarp();
    if (Block::kRewrites && lane() == 0) arrive(block.prepared(place.stage));
    release_stage(block, place.stage);
    place.advance();
  }
}

// The same by multiplying warpgroups, which take turns or share rows. With two sets of registers
// one step's operands are loaded and transformed while the other step's products run. `before` is
// work that begins when the previous kernel has ended.
template <class Block, class Before, class Body>
__device__ void multiply(Block block, bool reads_vectors, Before before, Body body) {
  constexpr int kTurns = Block::kTurns, kSets = Block::kSets;
  wait_for_cluster_start(block);
  before.ask();
  before.compute();
  if (reads_vectors) wait(block.vectors_full(), 0);
  const int first = kTurns > 1 ? block.product_group() % kTurns : 0;
  typename Block::Place place{first}, multiplied{first};
  const auto release_multiplied = [&] {
    release_stage(block, multiplied.stage);
    multiplied.advance(kTurns);
  };
  const auto multiply_one = [&](int step) {
    wait(block.ready(place.stage), place.parity);
    unrolled<Block::kTmaTiles>([&](int b) {
      body(ConsumerStep<Block>{block, place.stage, b, block.part_k(step) + b * kTmaDepth});
    });
    end_products<kSets - 1>();
    if (step >= (kSets - 1) * kTurns) release_multiplied();
    place.advance(kTurns);
  };
  constexpr int kRound = kSets * kTurns, kWhole = Block::kSteps / kRound * kRound;
#pragma unroll 1
  for (int step = first; step < kWhole; step += kRound) {
    unrolled<kSets>([&](int s) { multiply_one(step + s * kTurns); });
  }
  if (kWhole < Block::kSteps) multiply_one(kWhole + first);
  if (kSets == 1) return;
  end_products();
  release_multiplied();
}

template <class Block, class Body>
__device__ void multiply(Block block, bool reads_vectors, Body body) {
  multiply(block, reads_vectors, Nothing{}, body);
}

}  // namespace mirage::tile
