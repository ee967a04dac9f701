// Which keys a block takes: its range of all key blocks of all work tiles, item by item.
//
// A work tile is one sequence, one head of the cache and one tile of query rows; its keys come in
// key blocks of kBlockKeys. All key blocks stand in one row, sequence by sequence, head by head,
// tile by tile, and every block takes an equal range of it: blocks are busy alike however lengths
// differ, and nothing about them need be known on the host. A work item is what a range has of one
// work tile.
#pragma once

#include "tile/attention/plain_args.cuh"
#include "tile/grid.cuh"
#include "tile/sync/cluster.cuh"

namespace mirage::tile {

// For divisors 1 to 2^31 - 1 and numbers below 2^31: multiplier / 2^shift exceeds 1 / divisor by
// less than 2^-31 of it.
inline HostDivisor divisor(int64_t value) {
  int bits = 0;
  while ((int64_t{1} << bits) < value) ++bits;
  const int shift = 31 + bits;
  const uint64_t scale = uint64_t{1} << shift;
  return {static_cast<uint32_t>(value), static_cast<uint32_t>(scale / value + 1),
          static_cast<uint32_t>(shift)};
}

__device__ inline unsigned quotient(unsigned number, const HostDivisor& by) {
  return static_cast<unsigned>(static_cast<uint64_t>(number) * by.multiplier >> by.shift);
}

__device__ inline unsigned remainder(unsigned number, const HostDivisor& by) {
  return number - quotient(number, by) * by.value;
}

constexpr int kBlockKeys = 16;
constexpr int kFinishKeyBlocks =
    12;  // what finishing a work tile is worth, where clusters have several

// What a step does with its keys beside products, as knobs say it: 0 nothing, 1 sums over their
// lines, 2 new lines computed of them.
MIRAGE_DEFAULT(KeyWork, 0)

// One sequence as the kernel sees it.
struct Sequence {
  int keys, tokens;         // in the cache; query tokens, the last of them
  int first_token;          // of the query tensor
  int lowest;               // key that a query token looks back to
  int skipped, key_blocks;  // key blocks before it, and the others; at least one
  int tiles;                // of query rows
  int length;  // of a work tile in the row of all key blocks: its key blocks and what finishing is
               // worth

  __device__ int cost(const AttentionArgs& args) const { return length * tiles * args.Hkv; }
};

// Of a sequence with as many tokens as any has.
template <int kRows>
int64_t sequence_work_tiles(const AttentionArgs& args) {
  return ceil_div(static_cast<int64_t>(args.q_len) * args.G, kRows) * args.Hkv;
}

__device__ inline int work_tiles_of(const AttentionArgs& args) {
  return args.sequence_work_tiles.value * args.B;
}

// A length that was read, within what the host knows.
__device__ inline int bounded_length(const AttentionArgs& args, int length) {
  return max(0, min(length, args.max_len));
}
template <class Args>
__device__ int length_of(const Args& args, int b) {
  return bounded_length(args, has_lengths(args) ? args.seq_lens[b] : args.max_len);
}

template <int kRows, class Args>
__device__ Sequence sequence(const Args& args, int b, int keys) {
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
    found.skipped = found.lowest / kBlockKeys;
  }
  const unsigned through = (found.keys + kBlockKeys - 1u) / kBlockKeys;
  found.key_blocks = max(1, static_cast<int>(through) - found.skipped);
  found.length = found.key_blocks + (work_tiles_of(args) > cluster_count() ? kFinishKeyBlocks : 0);
  found.tiles = (static_cast<unsigned>(found.tokens * args.G) + kRows - 1) / kRows;
  return found;
}

template <int kRows, class Args>
__device__ Sequence sequence(const Args& args, int b) {
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

  template <class Args>
  __device__ explicit Lengths(const Args& args) {
    unrolled<kHeld>(
        [&](int i) { held[i] = i * kWarpLanes < args.B ? of(args, i * kWarpLanes) : 0; });
  }

  // Lane i has the length of sequence first + i; past the last one that one's.
  template <class Args>
  __device__ int from(const Args& args, int first) const {
    const int low = first == 0 ? held[0] : held[1];
    const int high = first == 2 * kWarpLanes ? held[2] : held[3];
    const int mine = first < 2 * kWarpLanes ? low : high;
    return bounded_length(args, first >= kMost ? of(args, first) : mine);
  }

  // The same, read again if that is wanted.
  __device__ Lengths again(const AttentionArgs& args, bool wanted) const {
    Lengths now(*this);
    wanted = wanted && args.seq_lens != nullptr;
    unrolled<kHeld>([&](int i) {
      const int b = min(i * kWarpLanes + lane(), args.B - 1);
      load_if(wanted && i * kWarpLanes < args.B, args.seq_lens + b, now.held[i]);
    });
    return now;
  }

  // Whether all lengths of the call are known to be the same.
  __device__ bool are(const Lengths& others, const AttentionArgs& args) const {
    bool same = args.B <= kMost;
    unrolled<kHeld>([&](int i) { same = same && held[i] == others.held[i]; });
    return __all_sync(~0u, same);
  }

  // Whether all sequences are as long as the first.
  template <class Args>
  __device__ bool equal(const Args& args) const {
    const int one = __shfl_sync(~0u, from(args, 0), 0);
    bool same = true;
    for (int first = 0; first < args.B; first += kWarpLanes) same &= from(args, first) == one;
    return __all_sync(~0u, same);
  }

 private:
  template <class Args>
  __device__ static int of(const Args& args, int first) {
    return has_lengths(args) ? args.seq_lens[min(first + lane(), args.B - 1)] : args.max_len;
  }
};

// Lane i has sequence first + i; past the last one that has no key blocks.
template <int kRows, class Args>
__device__ Sequence lanes_sequence(const Args& args, int first, const Lengths& lengths) {
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

// Where it begins in one of them.
template <class T>
__device__ const T* query_line(const mirage::Lines& lines, const QueryPlace& at) {
  return static_cast<const T*>(lines.at) + at.token * lines.token + at.head * lines.head;
}

// One sequence, head of the cache and tile of query rows.
struct WorkTile {
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

struct WorkItem : WorkTile {
  int first, last;  // key blocks of the work tile, skipped ones not counted
  int position;     // of the first in the row of all key blocks
};

// How all key blocks are partitioned over the blocks, in equal shares.
struct Shares {
  int share = 0, longer = 0;  // key blocks of a block; so many blocks have one more

  Shares() = default;
  __device__ Shares(int total, const HostDivisor& blocks)
      : share(quotient(total, blocks)), longer(total - share * blocks.value) {}

  __device__ int first(int block) const { return block * share + min(block, longer); }

  // The block that has a key block.
  __device__ int block_of(int key_block) const {
    const int split = longer * (share + 1);
    const bool among = key_block < split;
    const unsigned after = key_block - (among ? 0 : split);
    return (among ? 0 : longer) + after / static_cast<unsigned>(share + among);
  }
};

// The items of a range, one after the other. Warps find them each for themselves.
template <int kRows, class Args = AttentionArgs>
class WorkItems {
 public:
  WorkItems() = default;
  __device__ explicit WorkItems(const Args& args) : WorkItems(args, Lengths(args)) {}

  // All lanes together. Each cluster takes an equal share; if there are too few key blocks, one or
  // none.
  __device__ WorkItems(const Args& args, const Lengths& lengths) : args_(&args) {
    if (args.B == 1) {
      current_ = sequence<kRows>(args, 0, lengths.from(args, 0));
      scatter(current_.cost(args));
    } else if (args.B <= kWarpLanes) {
      const Sequence mine = lanes_sequence<kRows>(args, 0, lengths);
      const int cost = mine.cost(args), through = up_to_lane(cost);
      scatter(__shfl_sync(~0u, through, kWarpLanes - 1));
      if (position_ < end_) prefetch_l2(0, mine, through - cost, through);
    } else {
      int total = 0;
      for (int first = 0; first < args.B; first += kWarpLanes) {
        total += over_lanes(lanes_sequence<kRows>(args, first, lengths).cost(args));
      }
      scatter(total);
      if (position_ < end_) find_far(lengths);
    }
  }

  // The cluster that has the key block before a position.
  __device__ int cluster_before(int position) const { return shares_.block_of(position - 1); }

  __device__ bool next(WorkItem& item) {
    while (position_ < end_) {
      while (position_ >= start_ + current_.cost(*args_)) {
        start_ += current_.cost(*args_);
        if (++b_ >= args_->B) return false;  // only where lengths were written meanwhile
        current_ = sequence<kRows>(*args_, b_);
      }
      const int offset = position_ - start_;
      unsigned work_tile = 0;
      if (offset >= current_.length) work_tile = offset / static_cast<unsigned>(current_.length);
      item.first = offset - work_tile * current_.length;
      item.last = min(current_.key_blocks, item.first + end_ - position_);
      item.position = position_;
      position_ += current_.length - item.first;
      if (item.first >= item.last) continue;  // only what stands for finishing it
      item.sequence = current_;
      item.b = b_;
      item.head = work_tile;
      if (current_.tiles > 1) item.head = work_tile / static_cast<unsigned>(current_.tiles);
      item.tile = work_tile - item.head * current_.tiles;
      return true;
    }
    return false;
  }

 protected:
  __device__ void scatter(int total) {
    const int cluster = cluster_index();
    shares_ = Shares(total, args_->clusters);
    position_ = shares_.first(cluster);
    end_ = shares_.first(cluster + 1);
  }

  // Takes the sequence that holds position_ of those of the lanes, if it is one of them.
  __device__ bool prefetch_l2(int first, const Sequence& mine, int before, int through) {
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
      if (prefetch_l2(first, mine, through - cost, through)) return;
      start = __shfl_sync(~0u, through, kWarpLanes - 1);
    }
  }

  __device__ static Sequence from_lane(Sequence mine, int at) {
    unrolled<sizeof(Sequence) / sizeof(int)>([&](int i) {
      int& number = reinterpret_cast<int*>(&mine)[i];
      number = __shfl_sync(~0u, number, at);
    });
    return mine;
  }

  const Args* args_ = nullptr;
  Shares shares_;
  int position_ = 0, end_ = 0;
  int start_ = 0;  // of sequence b_
  int b_ = 0;
  Sequence current_{};
};

__device__ inline void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Whether there is room for the clusters of another call, where `blocks` run on a multiprocessor.
__device__ inline bool leaves_room(const AttentionArgs& args, int blocks) {
  return cluster_size() > 1 &&
         2 * gridDim.x <= static_cast<unsigned>(args.multiprocessors) * blocks;
}

constexpr int kMaxCluster = 16;  // blocks
// What clusters send needs room, which longer heads have not.
template <int kDepth>
constexpr bool kHasClusters = kDepth <= 128;
// Positions are ints; so many key blocks take seconds.
constexpr int64_t kMostKeyBlocks = (int64_t{1} << 31) - (1 << 24);

}  // namespace mirage::tile
