// Which keys a block takes: its stretch of all units of all segments, part by part.
//
// A segment is one sequence, one head of the cache and one tile of query rows; its keys come in
// units of kUnitKeys. All units stand in one row, sequence by sequence, head by head, tile by tile,
// and every block takes an equal stretch of it: blocks are busy alike however lengths differ, and
// nothing about them need be known on the host. A part is what a stretch has of one segment.
#pragma once

#include "launch.h"
#include "tile/cluster.cuh"
#include "tile/division.cuh"
#include "tile/fragments.cuh"
#include "tile/grid.cuh"

namespace mirage::tile {

constexpr int kUnitKeys = 16;
constexpr int kFinishUnits = 12;  // what finishing a segment is worth, where crews have several

// What a step does with its keys beside products, as knobs say it: 0 nothing, 1 sums over their
// lines, 2 new lines computed of them.
template <class Knobs, class = void>
constexpr int kKeyWorkOf = 0;
template <class Knobs>
constexpr int kKeyWorkOf<Knobs, std::void_t<decltype(Knobs::kKeyWork)>> = Knobs::kKeyWork;

// One sequence as the kernel sees it.
struct Sequence {
  int keys, tokens;    // in the cache; query tokens, the last of them
  int first_token;     // of the query tensor
  int lowest;          // key that a query token looks back to
  int skipped, units;  // units before it, and the others; at least one
  int tiles;           // of query rows
  int length;  // of a segment in the row of all units: its units and what finishing is worth

  __device__ int cost(const AttentionArgs& args) const { return length * tiles * args.Hkv; }
};

// Of a sequence with as many tokens as any has.
template <int kRows>
int64_t sequence_segments(const AttentionArgs& args) {
  return ceil_div(static_cast<int64_t>(args.q_len) * args.G, kRows) * args.Hkv;
}

__device__ inline int segments_of(const AttentionArgs& args) {
  return args.sequence_segments.value * args.B;
}

// A length that was read, within what the host knows.
__device__ inline int bounded_length(const AttentionArgs& args, int length) {
  return max(0, min(length, args.max_len));
}
__device__ inline int length_of(const AttentionArgs& args, int b) {
  return bounded_length(args, args.seq_lens == nullptr ? args.max_len : args.seq_lens[b]);
}

template <int kRows>
__device__ Sequence sequence(const AttentionArgs& args, int b, int keys) {
  Sequence found{};
  found.keys = keys;
  found.tokens = args.q_len;
  found.first_token = b * args.q_len;
  if (args.first_tokens != nullptr) {
    found.first_token = args.first_tokens[b];
    found.tokens = args.first_tokens[b + 1] - found.first_token;
  }
  if (args.first_window >= 0) {
    found.lowest = max(0, found.keys - found.tokens - args.first_window);
    found.skipped = found.lowest / kUnitKeys;
  }
  const unsigned through = (found.keys + kUnitKeys - 1u) / kUnitKeys;
  found.units = max(1, static_cast<int>(through) - found.skipped);
  found.length = found.units + (segments_of(args) > cluster_count() ? kFinishUnits : 0);
  found.tiles = (static_cast<unsigned>(found.tokens * args.G) + kRows - 1) / kRows;
  return found;
}

template <int kRows>
__device__ Sequence sequence(const AttentionArgs& args, int b) {
  return sequence<kRows>(args, b, length_of(args, b));
}

// Reads a number where `there`, by one instruction: nothing waits for it before it is used. (Behind
// a branch it would be copied at once.)
__device__ inline void load_if(bool there, const int* at, int& number) {
  asm volatile(
      "{ .reg .pred there;\n"
      "setp.ne.s32 there, %2, 0;\n"
      "@there ld.global.s32 %0, [%1]; }"
      : "+r"(number)
      : "l"(at), "r"(static_cast<int>(there))
      : "memory");
}

// The first lengths as they were read once: lane i has those of sequences i, i + 32, ...
struct Lengths {
  static constexpr int kHeld = 4, kMost = kHeld * kWarpLanes;
  int held[kHeld];

  __device__ explicit Lengths(const AttentionArgs& args) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = i * kWarpLanes < args.B ? of(args, i * kWarpLanes) : 0;
    }
  }

  // Lane i has the length of sequence first + i; past the last one that one's.
  __device__ int from(const AttentionArgs& args, int first) const {
    const int low = first == 0 ? held[0] : held[1];
    const int high = first == 2 * kWarpLanes ? held[2] : held[3];
    const int mine = first < 2 * kWarpLanes ? low : high;
    return bounded_length(args, first >= kMost ? of(args, first) : mine);
  }

  // The same, read again if that is wanted.
  __device__ Lengths again(const AttentionArgs& args, bool wanted) const {
    Lengths now(*this);
    wanted = wanted && args.seq_lens != nullptr;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int b = min(i * kWarpLanes + lane(), args.B - 1);
      load_if(wanted && i * kWarpLanes < args.B, args.seq_lens + b, now.held[i]);
    }
    return now;
  }

  // Whether all lengths of the call are known to be the same.
  __device__ bool are(const Lengths& others, const AttentionArgs& args) const {
    bool same = args.B <= kMost;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) same = same && held[i] == others.held[i];
    return __all_sync(~0u, same);
  }

  // Whether all sequences are as long as the first.
  __device__ bool equal(const AttentionArgs& args) const {
    const int one = __shfl_sync(~0u, from(args, 0), 0);
    bool same = true;
    for (int first = 0; first < args.B; first += kWarpLanes) same &= from(args, first) == one;
    return __all_sync(~0u, same);
  }

 private:
  __device__ static int of(const AttentionArgs& args, int first) {
    return args.seq_lens == nullptr ? args.max_len : args.seq_lens[min(first + lane(), args.B - 1)];
  }
};

// Lane i has sequence first + i; past the last one that has no units.
template <int kRows>
__device__ Sequence lanes_sequence(const AttentionArgs& args, int first, const Lengths& lengths) {
  const int b = first + lane(), keys = lengths.from(args, first);
  return b < args.B ? sequence<kRows>(args, b, keys) : Sequence{};
}

__device__ inline int over_lanes(int mine) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) mine += __shfl_xor_sync(~0u, mine, mask);
  return mine;
}

// The sum of the lanes' numbers up to each one's own.
__device__ inline int up_to_lane(int mine) {
#pragma unroll
  for (int n = 1; n < kWarpLanes; n *= 2) {
    const int left = __shfl_up_sync(~0u, mine, n);
    if (lane() >= n) mine += left;
  }
  return mine;
}

// A query row in the tensors of queries and results.
struct QueryPlace {
  int64_t token, head;
};

// One sequence, head of the cache and tile of query rows.
struct Segment {
  Sequence sequence;
  int b, head, tile;

  template <int kRows>
  __device__ int rows(const AttentionArgs& args) const {
    return min(kRows, sequence.tokens * args.G - tile * kRows);
  }

  template <int kRows>
  __device__ QueryPlace place(const AttentionArgs& args, int row) const {
    const unsigned at = tile * kRows + row;
    const unsigned token = sequence.tokens == 1 ? 0 : quotient(at, args.group);
    return {sequence.first_token + static_cast<int>(token),
            static_cast<int>(head * args.G + at - token * args.G)};
  }
};

struct Part : Segment {
  int first, last;  // units of the segment, skipped ones not counted
  int position;     // of the first in the row of all units
};

// How all units are dealt out to the blocks, in equal shares.
struct Shares {
  int share = 0, longer = 0;  // units of a block; so many blocks have one more

  Shares() = default;
  __device__ Shares(int total, const HostDivisor& blocks)
      : share(quotient(total, blocks)), longer(total - share * blocks.value) {}

  __device__ int first(int block) const { return block * share + min(block, longer); }

  // The block that has a unit.
  __device__ int block_of(int unit) const {
    const int split = longer * (share + 1);
    const bool among = unit < split;
    const unsigned after = unit - (among ? 0 : split);
    return (among ? 0 : longer) + after / static_cast<unsigned>(share + among);
  }
};

// The parts of a stretch, one after the other. Warps find them each for themselves.
template <int kRows>
class Parts {
 public:
  Parts() = default;
  __device__ explicit Parts(const AttentionArgs& args) : Parts(args, Lengths(args)) {}

  // All lanes together. Each crew takes an equal share; if there are too few units, one or none.
  __device__ Parts(const AttentionArgs& args, const Lengths& lengths) : args_(&args) {
    if (args.B == 1) {
      current_ = sequence<kRows>(args, 0, lengths.from(args, 0));
      deal(current_.cost(args));
    } else if (args.B <= kWarpLanes) {
      const Sequence mine = lanes_sequence<kRows>(args, 0, lengths);
      const int cost = mine.cost(args), through = up_to_lane(cost);
      deal(__shfl_sync(~0u, through, kWarpLanes - 1));
      if (position_ < end_) find(0, mine, through - cost, through);
    } else {
      int total = 0;
      for (int first = 0; first < args.B; first += kWarpLanes) {
        total += over_lanes(lanes_sequence<kRows>(args, first, lengths).cost(args));
      }
      deal(total);
      if (position_ < end_) find_far(lengths);
    }
  }

  // The crew that has the unit before a position.
  __device__ int crew_before(int position) const { return shares_.block_of(position - 1); }

  __device__ bool next(Part& part) {
    while (position_ < end_) {
      while (position_ >= start_ + current_.cost(*args_)) {
        start_ += current_.cost(*args_);
        if (++b_ >= args_->B) return false;  // only where lengths were written meanwhile
        current_ = sequence<kRows>(*args_, b_);
      }
      const int offset = position_ - start_;
      unsigned segment = 0;
      if (offset >= current_.length) segment = offset / static_cast<unsigned>(current_.length);
      part.first = offset - segment * current_.length;
      part.last = min(current_.units, part.first + end_ - position_);
      part.position = position_;
      position_ += current_.length - part.first;
      if (part.first >= part.last) continue;  // only what stands for finishing it
      part.sequence = current_;
      part.b = b_;
      part.head = segment;
      if (current_.tiles > 1) part.head = segment / static_cast<unsigned>(current_.tiles);
      part.tile = segment - part.head * current_.tiles;
      return true;
    }
    return false;
  }

 protected:
  __device__ void deal(int total) {
    const int crew = cluster_index();
    shares_ = Shares(total, args_->crews);
    position_ = shares_.first(crew);
    end_ = shares_.first(crew + 1);
  }

  // Takes the sequence that holds position_ of those of the lanes, if it is one of them.
  __device__ bool find(int first, const Sequence& mine, int before, int through) {
    const unsigned reached = __ballot_sync(~0u, through > position_);
    if (reached == 0) return false;
    const int at = __ffs(static_cast<int>(reached)) - 1;
    b_ = first + at;
    start_ = __shfl_sync(~0u, before, at);
    current_ = from_lane(mine, at);
    return true;
  }

  // The same among many, 32 at a time.
  __device__ void find_far(const Lengths& lengths) {
    int start = 0;
    for (int first = 0; first < args_->B; first += kWarpLanes) {
      const Sequence mine = lanes_sequence<kRows>(*args_, first, lengths);
      const int cost = mine.cost(*args_), through = start + up_to_lane(cost);
      if (find(first, mine, through - cost, through)) return;
      start = __shfl_sync(~0u, through, kWarpLanes - 1);
    }
  }

  __device__ static Sequence from_lane(Sequence mine, int at) {
    Sequence theirs;
    theirs.keys = __shfl_sync(~0u, mine.keys, at);
    theirs.tokens = __shfl_sync(~0u, mine.tokens, at);
    theirs.first_token = __shfl_sync(~0u, mine.first_token, at);
    theirs.lowest = __shfl_sync(~0u, mine.lowest, at);
    theirs.skipped = __shfl_sync(~0u, mine.skipped, at);
    theirs.units = __shfl_sync(~0u, mine.units, at);
    theirs.length = __shfl_sync(~0u, mine.length, at);
    theirs.tiles = __shfl_sync(~0u, mine.tiles, at);
    return theirs;
  }

  const AttentionArgs* args_ = nullptr;
  Shares shares_;
  int position_ = 0, end_ = 0;
  int start_ = 0;  // of sequence b_
  int b_ = 0;
  Sequence current_{};
};

__device__ inline void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Whether there is room for the crews of another call, where `blocks` run on a multiprocessor.
__device__ inline bool leaves_room(const AttentionArgs& args, int blocks) {
  return cluster_size() > 1 &&
         2 * gridDim.x <= static_cast<unsigned>(args.multiprocessors) * blocks;
}

constexpr int kMostCrew = 16;  // blocks
// What crews push needs room, which longer heads have not.
template <int kDepth>
constexpr bool kHasCrews = kDepth <= 128;
// Positions are ints; so many units take seconds.
constexpr int64_t kMostUnits = (int64_t{1} << 31) - (1 << 24);

}  // namespace mirage::tile
