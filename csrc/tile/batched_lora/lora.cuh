// Batched LoRA: stacked weights (adapters), of which each token selects one or none.
//
// The selection is addressing, like pages of a cache: the muGraph gives the mathematics of one
// token with its slices of the stacks. Tokens with the same adapter form groups of up to eight, as
// many as a tensor-core instruction takes; a token begins a group if its rank among the tokens of
// its adapter is a multiple of eight. Ids may come in any order, and the host does not read them.
//
// A call is two launches. In the first, clusters compute the products of x with the tokens' first
// slices (rows that the second grid does not cut): a cluster takes a group and some rows and splits
// the depth over its blocks and their warps. The first launch triggers the second as soon as
// everything before it has ended. The second's blocks stream their weights at once; one warp of
// each waits for the first launch and multiplies each group with its second slice.
#pragma once

#include "tile/batched_lora/producers.cuh"
#include "tile/producer_blocks/intermediate.cuh"
#include "tile/register_operand/block.cuh"

MIRAGE_KNOB(Slices)

namespace mirage::tile {

// The pipeline of second slices, a tile of rows per stage, and the groups that they are for.
template <class T, int kRows, int kDepth, int kStages>
struct SlicePipeline {
  using Tile = Resident<T, kRows, kDepth>;
  static constexpr int kBytes = kGroupsBytes + kStages * Tile::kBytes;
  char* shared;

  __device__ AdapterGroup* groups() const { return reinterpret_cast<AdapterGroup*>(shared); }
  __device__ Tile tile(int stage) const { return {shared + kGroupsBytes + stage * Tile::kBytes}; }
  // tile(stage) = rows of a slice, asynchronously, by one warp.
  __device__ void fetch(int stage, const T* slice, OutputTile rows) const {
    constexpr int kVectors16 = kDepth / kLaneDepth;
    const Tile to = tile(stage);
    const T* const first = slice + static_cast<int64_t>(rows.first_row) * kDepth;
#pragma unroll
    for (int n = 0; n < kRows * kVectors16; n += kWarpLanes) {
      const int i = n + lane(), line = i / kVectors16, k = i % kVectors16 * kLaneDepth;
      if (kRows * kVectors16 % kWarpLanes != 0 && line >= kRows) break;
      copy_16_bytes<Cache::kStream>(reinterpret_cast<char*>(to.at(line, k)),
                                    first + line * kDepth + k, rows.first_row + line < rows.rows);
    }
  }
};

// products[n, m] of a group's tokens = sum over k of rows[n, k] * resident[m, k].
template <class T, int kRows, int kTokens, int kDepth>
__device__ void contract_group(float* products, Resident<T, kRows, kDepth> rows,
                               Resident<T, kTokens, kDepth> resident, AdapterGroup group) {
  constexpr int kPitch = AccumPartials<kRows, kTokens, 1>::kPitch, kRowTiles = kRows / kRowTile;
  static_assert(kRows % kRowTile == 0);
  const int line = group.token(lane_line());
  float sums[kRowTiles][4] = {};
#pragma unroll
  for (int k = 0; k < kDepth; k += kMmaDepth) {
    const Vec16<T> few = load_quartet(resident, line, k);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const int row = r * kRowTile + lane_line();
      const Vec16<T> pair[2] = {load_quartet(rows, row, k), load_quartet(rows, row + kLineTile, k)};
      mma<T>(sums[r], pair, few, 0);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int place = lane_quarter() * 2 + j;
    if (place >= group.count) continue;
    float* const to = products + group.token(place) * kPitch + lane_line();
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      to[r * kRowTile] = sums[r][j];
      to[r * kRowTile + kLineTile] = sums[r][2 + j];
    }
  }
}

// resident[token, :] = inner[token, :] of tokens that have an adapter, asynchronously, by one warp;
// nobody has written the others.
template <class T, int kTokens, int kDepth>
__device__ void fetch_chosen(Resident<T, kTokens, kDepth> resident, const T* inner,
                             const Adapters& adapters, OutputTile tile) {
  constexpr int kVectors16 = kDepth / kLaneDepth;
  const int tokens = min(kTokens, tile.tokens - tile.first_token);
  const T* const first = inner + static_cast<int64_t>(tile.first_token) * kDepth;
#pragma unroll 1
  for (int i = lane(); i < tokens * kVectors16; i += kWarpLanes) {
    const int token = i / kVectors16, k = i % kVectors16 * kLaneDepth;
    if (!adapters.has(token)) continue;
    copy_16_bytes<Cache::kKeep>(reinterpret_cast<char*>(resident.at(token, k)),
                                first + token * kDepth + k, true);
  }
}

// By one warp of a block: products[n, m] = sum over k of stack[adapter of m][n, k] * inner[m, k],
// zeros for tokens without an adapter. `tile`: the block's part of [M, N].
template <class T, int kRows, int kTokens, int kDepth, int kStages>
__device__ void contract_adapters(char* shared, SlicePipeline<T, kRows, kDepth, kStages> slices,
                                  Resident<T, kTokens, kDepth> resident, const LaunchArgs& args,
                                  const T* stack, OutputTile tile) {
  constexpr int kPitch = AccumPartials<kRows, kTokens, 1>::kPitch, kAhead = kStages - 1;
  static_assert(kTokens <= kMostGrouped);
  float* const products = reinterpret_cast<float*>(shared);
  const Adapters adapters(args, tile.first_token, kTokens);
  adapters.list(slices.groups());
  const int count = adapters.count();
  const int64_t slice = static_cast<int64_t>(tile.rows) * kDepth;
  const auto fetch_group = [&](int number, int stage) {
    if (number < count) slices.fetch(stage, stack + slices.groups()[number].adapter * slice, tile);
    commit_copies();
  };
#pragma unroll
  for (int s = 0; s < kAhead; ++s) fetch_group(s, s);
#pragma unroll 1
  for (int i = lane(); i < kTokens * kPitch; i += kWarpLanes) products[i] = 0.0f;
  grid_dependency_wait();
  fetch_chosen(resident, static_cast<const T*>(args.workspace), adapters, tile);
  commit_copies();
  wait_copies<0>();
  int stage = 0, next = kAhead;
#pragma unroll 1
  for (int number = 0; number < count; ++number) {
    wait_copies<kAhead - 1>();
    __syncwarp();  // all lanes' copies have landed, and the previous tile has been read
    fetch_group(number + kAhead, next);
    contract_group(products, slices.tile(stage), resident, slices.groups()[number]);
    next = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

}  // namespace mirage::tile
