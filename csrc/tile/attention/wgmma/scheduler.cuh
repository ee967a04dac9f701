// Which keys a block takes that has many query rows.
//
// Blocks of a crew share one segment, each an even part of its keys. Other blocks take equal
// stretches of all units, as in attention_parts.cuh.
#pragma once

#include "tile/attention/scheduler.cuh"
#include "tile/cluster.cuh"

namespace mirage::tile {

// An even part of what a crew has.
struct CrewShare {
  int first, last;
};
__device__ inline CrewShare crew_share(int units) {
  const int crew = cluster_size(), each = static_cast<unsigned>(units) >> (__ffs(crew) - 1);
  const int longer = units - each * crew, rank = cluster_rank();
  const int first = rank * each + min(rank, longer);
  return {first, first + each + (rank < longer ? 1 : 0)};
}

template <int kRows>
class WideParts {
 public:
  __device__ explicit WideParts(const AttentionArgs& args) : parts_(args) {}

  __device__ bool next(Part& part) {
    if (!parts_.next(part)) return false;
    if (cluster_size() == 1) return true;
    const CrewShare mine = crew_share(part.sequence.units);
    part.first = mine.first;
    part.last = mine.last;
    return true;
  }

  // The last block that leaves some of a part's segment to this one.
  __device__ int last_block(const Part& part) const {
    if (cluster_size() > 1 || part.last >= part.sequence.units) return blockIdx.x;
    return parts_.crew_before(part.position - part.first + part.sequence.units);
  }

  // The units of a part, up to whole steps of some units: what lies in a box is not cut then.
  __device__ CrewShare share(const Part& part, int step) const {
    return {rounded(part, part.first, step), rounded(part, part.last, step)};
  }

 private:
  __device__ static int rounded(const Part& part, int unit, int step) {
    const int units = part.sequence.units, skipped = part.sequence.skipped;
    if (unit == 0 || unit >= units) return unit;
    const int near = static_cast<unsigned>(skipped + unit + step / 2) / step * step - skipped;
    return min(max(near, 0), units);
  }

  Parts<kRows> parts_;
};

// What is known of a crew's segment before anything is read, if sequences have equally many query
// tokens.
template <int kRows>
__device__ Segment crew_segment(const AttentionArgs& args) {
  Segment found{};
  found.b = quotient(cluster_index(), args.sequence_segments);
  const unsigned segment = cluster_index() - found.b * args.sequence_segments.value;
  const unsigned tiles = (static_cast<unsigned>(args.q_len * args.G) + kRows - 1) / kRows;
  found.head = tiles == 1 ? segment : segment / tiles;
  found.tile = segment - found.head * tiles;
  found.sequence.tokens = args.q_len;
  found.sequence.first_token = found.b * args.q_len;
  return found;
}

// Brings a crew's queries, and what its first steps read of dense keys, into L2 while the kernel
// before still runs, as a hint.
template <class T, int kDepth, int kRows>
__device__ void prefetch_segment(const AttentionArgs& args, int most_keys, int threads) {
  if (args.first_tokens != nullptr) return;
  constexpr int kLineElements = 128 / sizeof(T), kLines = kDepth / kLineElements;
  const Segment segment = crew_segment<kRows>(args);
  const int rows = segment.rows<kRows>(args);
  for (int i = threadIdx.x; i < rows * kLines; i += threads) {
    const QueryPlace at = segment.place<kRows>(args, i / kLines);
    prefetch(static_cast<const T*>(args.q.at) + at.token * args.q.token + at.head * args.q.head +
             i % kLines * kLineElements);
  }
  if (args.block_table != nullptr || args.first_window >= 0) return;
  const CrewShare mine = crew_share((args.max_len + kUnitKeys - 1) / kUnitKeys);
  const int first = mine.first * kUnitKeys;
  const int keys = min(min(mine.last * kUnitKeys, args.max_len) - first, most_keys);
  for (int i = threadIdx.x; i < keys * kLines; i += threads) {
    const int key = first + i / kLines, at = i % kLines * kLineElements;
    prefetch(static_cast<const T*>(args.k.at) + segment.b * args.k.page + key * args.k.token +
             segment.head * args.k.head + at);
    prefetch(static_cast<const T*>(args.v.at) + segment.b * args.v.page + key * args.v.token +
             segment.head * args.v.head + at);
  }
}

}  // namespace mirage::tile
