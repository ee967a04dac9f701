// Which keys a block takes that has many query rows.
//
// Blocks of a cluster share one work tile, each an even item of its keys. Other blocks take equal
// ranges of all key blocks, as in scheduler.cuh.
#pragma once

#include "tile/attention/scheduler.cuh"

namespace mirage::tile {

// An even item of what a cluster has.
struct ClusterShare {
  int first, last;
};
__device__ inline ClusterShare cluster_share(int key_blocks) {
  const int cluster = cluster_size(),
            each = static_cast<unsigned>(key_blocks) >> (__ffs(cluster) - 1);
  const int longer = key_blocks - each * cluster, rank = cluster_rank();
  const int first = rank * each + min(rank, longer);
  return {first, first + each + (rank < longer ? 1 : 0)};
}

template <int kRows>
class WgmmaItems {
 public:
  __device__ explicit WgmmaItems(const AttentionArgs& args) : scheduler_(args) {}

  __device__ bool next(WorkItem& item) {
    if (!scheduler_.next(item)) return false;
    if (cluster_size() == 1) return true;
    const ClusterShare mine = cluster_share(item.sequence.key_blocks);
    item.first = mine.first;
    item.last = mine.last;
    return true;
  }

  // The last block that leaves some of a work item's work tile to this one.
  __device__ int last_block(const WorkItem& item) const {
    if (cluster_size() > 1 || item.last >= item.sequence.key_blocks) return blockIdx.x;
    return scheduler_.cluster_before(item.position - item.first + item.sequence.key_blocks);
  }

  // The key blocks of a work item, up to whole steps of some key blocks: what lies in a box is not
  // cut then.
  __device__ ClusterShare share(const WorkItem& item, int step) const {
    return {rounded(item, item.first, step), rounded(item, item.last, step)};
  }

 private:
  __device__ static int rounded(const WorkItem& item, int key_block, int step) {
    const int key_blocks = item.sequence.key_blocks, skipped = item.sequence.skipped;
    if (key_block == 0 || key_block >= key_blocks) return key_block;
    const int near = static_cast<unsigned>(skipped + key_block + step / 2) / step * step - skipped;
    return min(max(near, 0), key_blocks);
  }

  WorkItems<kRows> scheduler_;
};

// What is known of a cluster's work tile before anything is read, if sequences have equally many
// query tokens.
template <int kRows>
__device__ WorkTile cluster_work_tile(const AttentionArgs& args) {
  WorkTile found{};
  found.b = quotient(cluster_index(), args.sequence_work_tiles);
  const unsigned work_tile = cluster_index() - found.b * args.sequence_work_tiles.value;
  const unsigned tiles = (static_cast<unsigned>(args.q_len * args.G) + kRows - 1) / kRows;
  found.head = tiles == 1 ? work_tile : work_tile / tiles;
  found.tile = work_tile - found.head * tiles;
  found.sequence.tokens = args.q_len;
  found.sequence.first_token = found.b * args.q_len;
  return found;
}

// Brings a cluster's queries, and what its first steps read of dense keys, into L2 while the kernel
// before still runs, as a hint.
template <class T, int kDepth, int kRows>
__device__ void prefetch_work_tile(const AttentionArgs& args, int most_keys, int threads) {
  if (args.first_tokens != nullptr) return;
  constexpr int kLineElements = 128 / sizeof(T), kLines = kDepth / kLineElements;
  const WorkTile work_tile = cluster_work_tile<kRows>(args);
  const int rows = work_tile.rows<kRows>(args);
  for (int i = threadIdx.x; i < rows * kLines; i += threads) {
    const QueryPlace at = work_tile.place<kRows>(args, i / kLines);
    prefetch(query_line<T>(args.q, at) + i % kLines * kLineElements);
  }
  if (args.block_table != nullptr || args.first_window >= 0) return;
  const ClusterShare mine = cluster_share((args.max_len + kBlockKeys - 1) / kBlockKeys);
  const int first = mine.first * kBlockKeys;
  const int keys = min(min(mine.last * kBlockKeys, args.max_len) - first, most_keys);
  for (int i = threadIdx.x; i < keys * kLines; i += threads) {
    const int key = first + i / kLines, at = i % kLines * kLineElements;
    prefetch(static_cast<const T*>(args.k.at) + work_tile.b * args.k.page + key * args.k.token +
             work_tile.head * args.k.head + at);
    prefetch(static_cast<const T*>(args.v.at) + work_tile.b * args.v.page + key * args.v.token +
             work_tile.head * args.v.head + at);
  }
}

}  // namespace mirage::tile
