// How many blocks a call of attention is launched with, and how many of them are a cluster.
//
// The host knows the number of work tiles and the longest length; what it decides by is measured.
#pragma once

#include "tile/attention/dynamic_scheduler.cuh"

namespace mirage::tile {

// The arguments of a call, and what the device divides by but for the number of clusters.
template <int kRows>
AttentionArgs with_divisors(AttentionArgs args) {
  args.group = divisor(args.G);
  args.page = divisor(args.block_table == nullptr ? kBlockKeys : args.page_size);
  args.sequence_work_tiles = divisor(sequence_work_tiles<kRows>(args));
  return args;
}

// Key blocks of a work tile and of all, if every sequence is as long as the host knows.
inline int64_t longest_key_blocks(const AttentionArgs& args) {
  return ceil_div(larger(args.max_len, 1), kBlockKeys);
}
template <int kRows>
int64_t most_key_blocks(const AttentionArgs& args) {
  return longest_key_blocks(args) * sequence_work_tiles<kRows>(args) * args.B;
}

constexpr int kShortKeyBlocks = 2;           // of a warp
constexpr int kMostShortSteps = 16;          // of a warp whose lines are short
constexpr int kMostSummedKeyBlocks = 56;     // of a multiprocessor with small blocks
constexpr int kMostSummingSteps = 16;        // of a warp that sums lines of keys
constexpr int kMostComputingSteps = 6;       // of a warp that computes keys
constexpr int kFewPairUnits = 64;            // of a pair of small blocks
constexpr int kManyKeyBlocks = 15;           // of a multiprocessor
constexpr int kManyKeyBlocksOfClusters = 9;  // the same, where clusters leave room for another call
constexpr int kMostKeyBlocksOfClusters = 64;  // so many at most: see may_leave_room
constexpr int kDynamicKeyBlocks = 128;        // of a block that claims whole work tiles
constexpr int kLargeClusterKeyBlocks =
    8 * kMaxCluster;  // a key block for each of eight warps of sixteen blocks

// Blocks of a launch, and how many of them work on the same keys.
struct LaunchShape {
  int blocks, cluster;
};

// Whether clusters may leave room for another call's: they then have half of the multiprocessors or
// less, and those must hold_resident up with memory. Keys that come line by line take too much time
// for that; so do more keys than these where nothing runs beside: eight sequences of 4096 took 39.7
// us with a write to the cache in front instead of 35.7.
template <int kRows>
bool may_leave_room(const AttentionArgs& args) {
  if (most_key_blocks<kRows>(args) > kMostKeyBlocksOfClusters * args.multiprocessors) return false;
  return args.block_table == nullptr || args.page_size % kBlockKeys == 0;
}

// Blocks that run at once.
template <class Work>
int64_t most_blocks(const AttentionArgs& args) {
  return static_cast<int64_t>(args.multiprocessors) * Work::kBlocks;
}

// Blocks of a cluster, `most` or fewer: no more than spare its warps a step, if lengths are the
// most.
template <class Work>
int even_cluster(const AttentionArgs& args, int64_t most) {
  const int64_t steps =
      ceil_div(longest_key_blocks(args), Work::kWarps);  // of a cluster of one block
  if (most > kMaxCluster) most = kMaxCluster;
  if (most > steps) most = steps;
  return static_cast<int>(most < 1 ? 1 : ceil_div(steps, ceil_div(steps, most)));
}

// As many blocks as run at once, or as there is work for. WorkTiles that are equally long are cut
// evenly: a cluster then has one item, or whole work tiles.
template <class Work>
LaunchShape launch_shape_of(const AttentionArgs& args) {
  const int64_t work_tiles = sequence_work_tiles<Work::kRows>(args) * args.B;
  if (work_tiles == 0) return {0, 1};
  const int64_t most = most_blocks<Work>(args);
  if (work_tiles >= most) {
    const int64_t whole = ceil_div(work_tiles, most);  // work tiles of a block
    const int64_t even = ceil_div(work_tiles, whole);
    const bool stays = !kDynamicOf<Work> && 10 * even >= 9 * most;
    return {static_cast<int>(stays ? even : most), 1};
  }
  const int64_t key_blocks = longest_key_blocks(args);
  const int64_t long_enough = ceil_div(key_blocks, Work::kWarps);  // a key block for every warp
  int64_t items = most / work_tiles;
  if (items > kMaxCluster) items = kMaxCluster;
  if (items > long_enough) items = long_enough;
  int cluster = 1;
  while (kHasClusters<Work::kDepth> && 2 * cluster <= items) cluster *= 2;
  // Powers of two lie best, if they do not leave a third of the multiprocessors without work: 34
  // sequences of 4096 keys and one head take 29.5 us by clusters of two, 20.0 by clusters of three.
  // Short lines gain nothing.
  const bool many = Work::kBlocks == 1 && Work::kDepth == 128 && 10 * cluster < 7 * items;
  if (cluster > 1 && many) cluster = static_cast<int>(items);
  // Clusters lie unevenly on multiprocessors that have room for two blocks each: where they take
  // more than half of the multiprocessors, that is felt when they have much to read. Eight blocks
  // on half of the multiprocessors are faster than sixteen on all.
  if (Work::kBlocks > 1 && cluster == kMaxCluster &&
      2 * work_tiles * cluster > args.multiprocessors)
    cluster /= 2;
  const bool spread = Work::kBlocks == 1 || 2 * work_tiles * cluster <= args.multiprocessors;
  if (cluster > 1 && (spread || key_blocks <= kShortKeyBlocks * cluster * Work::kWarps)) {
    return {static_cast<int>(work_tiles) * cluster, cluster};
  }
  return {static_cast<int>(work_tiles * items), 1};
}

// Whether a call is better off with one large block on each multiprocessor than with several: few
// work tiles with much to read for each, or so few that clusters leave most multiprocessors idle.
template <int kRows, int kDepth = 128, int kKeyWork = 0>
bool has_few_work_tiles(const AttentionArgs& args) {
  const int64_t work_tiles = sequence_work_tiles<kRows>(args) * args.B;
  const int64_t key_blocks = most_key_blocks<kRows>(args);
  const int64_t all = args.multiprocessors;
  if (4 * work_tiles * kMaxCluster <= all) return key_blocks >= kLargeClusterKeyBlocks * work_tiles;
  if (kHasClusters<kDepth> && may_leave_room<kRows>(args)) {
    constexpr bool kLong = kDepth == 128;                    // lines
    const bool one = int64_t{args.q_len} * args.G <= kRows;  // tile; other kernels have larger ones
    // Two calls' clusters of sixteen small blocks, where not all of as many large ones find room.
    const int64_t both = 2 * work_tiles * kMaxCluster;
    if (one && kLong && both <= all && 8 * both > 7 * all) return false;
    if ((!one || kKeyWork == 2 ? 4 : kLong ? 8 : 12) * work_tiles <= all) {
      return key_blocks >= (one ? kManyKeyBlocksOfClusters : kManyKeyBlocks) * all;
    }
    // Of more, small blocks lie more evenly, down to two for a cluster. (On parts of the chip with
    // an odd number of multiprocessors one is left.) With short lines these have too little on its
    // way, if there is much to read.
    const bool even = kLong || (one && 9 * work_tiles <= 2 * all);
    const bool enough = 4 * work_tiles > all && key_blocks <= kFewPairUnits * work_tiles;
    const bool slow = kKeyWork == 2 || (kKeyWork == 1 && key_blocks > kMostSummedKeyBlocks * all);
    if (!slow && 2 * (work_tiles + 1) < all && (even || enough)) return false;
  }
  return work_tiles <= all && key_blocks >= kManyKeyBlocks * all;
}

// Whether blocks with these knobs had better claim whole work tiles, one at a time: those may be
// equally long, blocks with the most of them have little more than the others, and all have enough
// (64 sequences of 4096 keys and 8 heads: 246 to 243 us; 128 of 1024: 129 to 123).
template <class Knobs>
bool has_many_work_tiles(const AttentionArgs& args) {
  const int64_t work_tiles = sequence_work_tiles<Knobs::kRows>(args) * args.B;
  const int64_t most = int64_t{args.multiprocessors} * Knobs::kBlocks;
  const int64_t whole = ceil_div(work_tiles, most),
                key_blocks = longest_key_blocks(args);  // of a block
  if (args.first_tokens != nullptr || args.first_window >= 0) return false;
  if (work_tiles <= most || work_tiles >= int64_t{1} << DynamicScheduler::kCountBits) return false;
  return key_blocks >= DynamicScheduler::kLeastSteps * Knobs::kWarps &&
         whole * key_blocks >= kDynamicKeyBlocks && 10 * work_tiles >= 9 * most * whole;
}

}  // namespace mirage::tile
