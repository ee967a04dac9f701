// Reductions of cluster split-K blocks: each of the two blocks finishes half of the tokens.
//
// A warpgroup finishes groups of eight tokens of its rows. Per-token sums are reduced beside.
#pragma once

#include "tile/cluster_split_k/block.cuh"

namespace mirage::tile {

template <class Block, int kTiles, int kTokens>
__device__ Own<typename Block::Sums> store_partials(Block block, int product,
                                                    const WideAccum<kTiles, kTokens>& accum) {
  if (warp_index() >= Block::kProductWarps) return {};
  return scatter<typename Block::Sums>(accum.at, block.sums(product), block.rank, block.reduced());
}

// Per-token sums of a transforming warp: four lanes have parts of a line (TransformStep).
template <class Block, int kLines>
__device__ TokenParts<kClusterBlocks, Block::kHalf> store_partials(
    Block block, int i, const Partial<Dims::kTokensDepth, kLines>& partial) {
  float* const sums = block.token_sums(i);
  if (block.transforms()) {
    unrolled<kLines / kLineTile>([&](int line) {
      float sum = partial.at[line];
      sum += __shfl_xor_sync(~0u, sum, 8);
      sum += __shfl_xor_sync(~0u, sum, 16);
      const int token = warp_index() % kGroupWarps * kLines + line * kLineTile + lane();
      const int owner = token / Block::kHalf;
      float* const at = sums + block.rank * Block::kHalf + token % Block::kHalf;
      if (lane() >= kLineTile) return;
      if (owner == block.rank) {
        *at = sum;
      } else {
        store_dsmem(map_to_block(at, owner), sum, map_to_block(&block.reduced(), owner));
      }
    });
  }
  return {sums};
}

// After store_partials(): returns when all partial sums of this block's tokens have arrived.
template <class Block>
__device__ void wait_for_partials(Block block) {
  sync_threads<2, Block::kWorkers>();
  wait_for_dsmem_stores(block.reduced(), 0);
}

// By threads that finish something (ClusterSplitKBlock::finishes), like all that follows.
template <class Block>
__device__ void add_partials(Block block, int product, Own<typename Block::Sums>& own) {
  add_scattered<typename Block::Sums>(own, block.sums(product));
}

// Staging of a warp's results before the store: lines of 16 rows.
template <class Block>
struct ClusterSplitKStaging {
  static constexpr int kTokens = Block::Sums::kOwn * kLineTile;
  static constexpr int kLineBytes = kRowTile * 2, kTileBytes = kTokens * kLineBytes;
  static constexpr int kWarpBytes = Block::kTiles * kTileBytes;
  static_assert(Block::kProductWarps * kWarpBytes <= Block::kPipelineBytes);
};

// The elements that a thread finishes; in place of one outside the tensor the nearest inside.
template <class Block>
struct OwnedElements {
  using Sums = typename Block::Sums;
  int rows, tokens, first_row, first_token;

  __device__ OwnedElements(Block block, OutputTile tile)
      : rows(tile.rows - tile.first_row),
        tokens(min(Block::kHalf, tile.tokens - tile.first_token)),
        first_row(block.own_row() + warp_index() % kGroupWarps * kRowTile),
        first_token(Sums::turn() * ClusterSplitKStaging<Block>::kTokens) {}

  __device__ OwnedElement at(int r, int m, int i, float* result) const {
    const int row = first_row + r * kGroupRows + lane_line() + i / 2 * kLineTile;
    const int token = first_token + m * kLineTile + lane_quarter() * 2 + i % 2;
    return {{min(row, rows - 1), min(token, tokens - 1)}, r, m, i, result};
  }
};

// What read(element) says of these.
template <class Block, class Read>
__device__ Own<typename Block::Sums> read_owned(Block block, OutputTile tile, Read read) {
  using Sums = typename Block::Sums;
  Own<Sums> found{};
  if (warp_index() >= Block::kProductWarps) return found;
  const OwnedElements<Block> elements(block, tile);
  unrolled<Block::kTiles, Sums::kOwn, 4>(
      [&](int r, int m, int i) { found.at[r][m][i] = read(elements.at(r, m, i, nullptr)); });
  return found;
}

// The same elements of an optional tensor [M, N], or [N]; its row stride as load_element() has it.
template <class Block, class T>
__device__ auto load_owned(Block block, OutputTile tile, const T* tensor, int64_t stride) {
  return read_owned(block, tile, [&](Element e) { return load_element(tensor, stride, tile, e); });
}
template <class Block, class T, class... Stride>
__device__ auto load_owned_rows(Block block, OutputTile tile, const T* tensor, Stride... stride) {
  return read_owned(block, tile, [&](Element e) { return load_row(tensor, stride..., tile, e); });
}

template <int kTiles, int kOwn>
__device__ float early_value(const OwnSums<kTiles, kOwn>& early, OwnedElement e) {
  return sum_over_warps(early, e);  // one value, where sums have theirs
}

// body(element) for all elements that this thread finishes; then stores the values that body passed
// to store().
template <class Block, class T, class Body>
__device__ void for_each_owned(Block block, OutputTile tile, T* out, Body body) {
  using Sums = typename Block::Sums;
  using Staging = ClusterSplitKStaging<Block>;
  const OwnedElements<Block> elements(block, tile);
  const int in_tile = warp_index() % kGroupWarps * kRowTile, own_row = block.own_row();
  char* const lines = block.shared + warp_index() * Staging::kWarpBytes;
  // All are computed before the first is stored, so that elements do not wait for one another.
  float results[Block::kTiles][Sums::kOwn][4];
  unrolled<Block::kTiles, Sums::kOwn, 4>(
      [&](int r, int m, int i) { body(elements.at(r, m, i, &results[r][m][i])); });
  unrolled<Block::kTiles, Sums::kOwn>([&](int r, int m) {
    char* const to = lines + r * Staging::kTileBytes +
                     (m * kLineTile + lane() % kLineTile) * Staging::kLineBytes +
                     lane() / kLineTile % 2 * kVec16Bytes;
    store_matrices<true, T>(to, results[r][m]);
  });
  __syncwarp();
#pragma unroll
  for (int i = lane(); i < Staging::kWarpBytes / kVec16Bytes; i += kWarpLanes) {
    const int r = i / (2 * Staging::kTokens), line = i / 2 % Staging::kTokens;
    const int own = in_tile + r * kGroupRows + i % 2 * kLineTile;
    const Element e{own_row + own, elements.first_token + line};
    if (own < Block::kOwnRows && e.row < Block::kRows && e.token < elements.tokens) {
      store_16_bytes(out, tile, e, lines + i * kVec16Bytes);
    }
  }
}

}  // namespace mirage::tile
