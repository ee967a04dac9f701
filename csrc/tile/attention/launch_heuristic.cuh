// How many blocks a call of attention is launched with, and how many of them are a crew.
//
// The host knows the number of segments and the longest length; what it decides by is measured.
#pragma once

#include "tile/attention/dynamic_scheduler.cuh"

namespace mirage::tile {

// The arguments of a call, and what the device divides by but for the number of crews.
template <int kRows>
AttentionArgs with_divisors(AttentionArgs args) {
  args.group = divisor(args.G);
  args.page = divisor(args.block_table == nullptr ? kUnitKeys : args.page_size);
  args.sequence_segments = divisor(sequence_segments<kRows>(args));
  return args;
}

// Units of a segment and of all, if every sequence is as long as the host knows.
inline int64_t longest_units(const AttentionArgs& args) {
  return ceil_div(larger(args.max_len, 1), kUnitKeys);
}
template <int kRows>
int64_t most_units(const AttentionArgs& args) {
  return longest_units(args) * sequence_segments<kRows>(args) * args.B;
}

constexpr int kShortUnits = 2;                  // of a warp
constexpr int kMostShortSteps = 16;             // of a warp whose lines are short
constexpr int kMostSummedUnits = 56;            // of a multiprocessor with small blocks
constexpr int kMostSummingSteps = 16;           // of a warp that sums lines of keys
constexpr int kMostComputingSteps = 6;          // of a warp that computes keys
constexpr int kFewPairUnits = 64;               // of a pair of small blocks
constexpr int kManyUnits = 15;                  // of a multiprocessor
constexpr int kManyUnitsOfCrews = 9;            // the same, where crews leave room for another call
constexpr int kMostUnitsOfCrews = 64;           // so many at most: see may_leave_room
constexpr int kDealtUnits = 128;                // of a block that claims whole segments
constexpr int kLargeCrewUnits = 8 * kMostCrew;  // a unit for each of eight warps of sixteen blocks

// Blocks of a launch, and how many of them work on the same keys.
struct Crowd {
  int blocks, crew;
};

// Whether crews may leave room for another call's: they then have half of the multiprocessors or
// less, and those must keep up with memory. Keys that come line by line take too much time for
// that; so do more keys than these where nothing runs beside: eight sequences of 4096 took 39.7 us
// with a write to the cache in front instead of 35.7.
template <int kRows>
bool may_leave_room(const AttentionArgs& args) {
  if (most_units<kRows>(args) > kMostUnitsOfCrews * args.multiprocessors) return false;
  return args.block_table == nullptr || args.page_size % kUnitKeys == 0;
}

// Blocks that run at once.
template <class Work>
int64_t most_blocks(const AttentionArgs& args) {
  return static_cast<int64_t>(args.multiprocessors) * Work::kBlocks;
}

// Blocks of a crew, `most` or fewer: no more than spare its warps a step, if lengths are the most.
template <class Work>
int even_crew(const AttentionArgs& args, int64_t most) {
  const int64_t steps = ceil_div(longest_units(args), Work::kWarps);  // of a crew of one block
  if (most > kMostCrew) most = kMostCrew;
  if (most > steps) most = steps;
  return static_cast<int>(most < 1 ? 1 : ceil_div(steps, ceil_div(steps, most)));
}

// As many blocks as run at once, or as there is work for. Segments that are equally long are cut
// evenly: a crew then has one part, or whole segments.
template <class Work>
Crowd crowd_of(const AttentionArgs& args) {
  const int64_t segments = sequence_segments<Work::kRows>(args) * args.B;
  if (segments == 0) return {0, 1};
  const int64_t most = most_blocks<Work>(args);
  if (segments >= most) {
    const int64_t whole = ceil_div(segments, most);  // segments of a block
    const int64_t even = ceil_div(segments, whole);
    const bool stays = !kDealsOf<Work> && 10 * even >= 9 * most;
    return {static_cast<int>(stays ? even : most), 1};
  }
  const int64_t units = longest_units(args);
  const int64_t long_enough = ceil_div(units, Work::kWarps);  // a unit for every warp
  int64_t parts = most / segments;
  if (parts > kMostCrew) parts = kMostCrew;
  if (parts > long_enough) parts = long_enough;
  int crew = 1;
  while (kHasCrews<Work::kDepth> && 2 * crew <= parts) crew *= 2;
  // Powers of two lie best, if they do not leave a third of the multiprocessors without work: 34
  // sequences of 4096 keys and one head take 29.5 us by crews of two, 20.0 by crews of three. Short
  // lines gain nothing.
  const bool many = Work::kBlocks == 1 && Work::kDepth == 128 && 10 * crew < 7 * parts;
  if (crew > 1 && many) crew = static_cast<int>(parts);
  // Clusters lie unevenly on multiprocessors that have room for two blocks each: where they take
  // more than half of the multiprocessors, that is felt when they have much to read. Eight blocks
  // on half of the multiprocessors are faster than sixteen on all.
  if (Work::kBlocks > 1 && crew == kMostCrew && 2 * segments * crew > args.multiprocessors)
    crew /= 2;
  const bool spread = Work::kBlocks == 1 || 2 * segments * crew <= args.multiprocessors;
  if (crew > 1 && (spread || units <= kShortUnits * crew * Work::kWarps)) {
    return {static_cast<int>(segments) * crew, crew};
  }
  return {static_cast<int>(segments * parts), 1};
}

// Whether a call is better off with one large block on each multiprocessor than with several: few
// segments with much to read for each, or so few that crews leave most multiprocessors idle.
template <int kRows, int kDepth = 128, int kKeyWork = 0>
bool has_few_segments(const AttentionArgs& args) {
  const int64_t segments = sequence_segments<kRows>(args) * args.B;
  const int64_t units = most_units<kRows>(args);
  const int64_t all = args.multiprocessors;
  if (4 * segments * kMostCrew <= all) return units >= kLargeCrewUnits * segments;
  if (kHasCrews<kDepth> && may_leave_room<kRows>(args)) {
    constexpr bool kLong = kDepth == 128;                    // lines
    const bool one = int64_t{args.q_len} * args.G <= kRows;  // tile; other kernels have larger ones
    // Two calls' crews of sixteen small blocks, where not all of as many large ones find room.
    const int64_t both = 2 * segments * kMostCrew;
    if (one && kLong && both <= all && 8 * both > 7 * all) return false;
    if ((!one || kKeyWork == 2 ? 4 : kLong ? 8 : 12) * segments <= all) {
      return units >= (one ? kManyUnitsOfCrews : kManyUnits) * all;
    }
    // Of more, small blocks lie more evenly, down to two for a crew. (On parts of the chip with an
    // odd number of multiprocessors one is left.) With short lines these have too little on its
    // way, if there is much to read.
    const bool even = kLong || (one && 9 * segments <= 2 * all);
    const bool enough = 4 * segments > all && units <= kFewPairUnits * segments;
    const bool slow = kKeyWork == 2 || (kKeyWork == 1 && units > kMostSummedUnits * all);
    if (!slow && 2 * (segments + 1) < all && (even || enough)) return false;
  }
  return segments <= all && units >= kManyUnits * all;
}

// Whether blocks with these knobs had better claim whole segments, one at a time: those may be
// equally long, blocks with the most of them have little more than the others, and all have enough
// (64 sequences of 4096 keys and 8 heads: 246 to 243 us; 128 of 1024: 129 to 123).
template <class Knobs>
bool has_many_segments(const AttentionArgs& args) {
  const int64_t segments = sequence_segments<Knobs::kRows>(args) * args.B;
  const int64_t most = int64_t{args.multiprocessors} * Knobs::kBlocks;
  const int64_t whole = ceil_div(segments, most), units = longest_units(args);  // of a block
  if (args.first_tokens != nullptr || args.first_window >= 0) return false;
  if (segments <= most || segments >= int64_t{1} << Claims::kCountBits) return false;
  return units >= Claims::kLeastSteps * Knobs::kWarps && whole * units >= kDealtUnits &&
         10 * segments >= 9 * most * whole;
}

}  // namespace mirage::tile
