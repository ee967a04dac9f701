// Keys and values on their way to the warpgroups of a block, copied by warps that do nothing else.
//
// Steps come in the order of the keys and are dealt out to the groups of warpgroups. A barrier per
// slot tells of a step's arrival, another one that its readers are done. Copies run ahead across
// the borders of parts; what readers have to know of a part comes the same way. (Readers that
// copied, too, would wait for their own copies: a fence for the tensor core waits for them all.)
#pragma once

#include "tile/attention_wide_parts.cuh"
#include "tile/attention_wide_products.cuh"
#include "tile/dependent.cuh"
#include "tile/edges.cuh"

namespace mirage::tile {

// A part as readers see it.
struct PartEntry {
  Part part;
  int last_block;  // that has some of its segment
  bool more;       // whether there is such a part
};

template <class T, int kDepth, class Knobs>
struct WideRing {
  static constexpr int kKeys = Knobs::kKeys, kStages = Knobs::kStages, kCopiers = Knobs::kCopiers;
  static constexpr int kStepUnits = kKeys / kUnitKeys;
  static constexpr int kGroupWarpCount = Knobs::kRows / kWarpRows;  // warps that read a step
  static constexpr int kReaders = Knobs::kWarps - kCopiers;
  static constexpr int kGroups = kReaders / kGroupWarpCount;
  static constexpr int kTileBytes = kKeys * kDepth * 2;
  static constexpr int kSlotBytes = 2 * kTileBytes;  // keys, then values
  static constexpr int kEntries = 2;                 // parts that are known at once
  static_assert(kStages > 2 * kGroups && kDepth % kBoxDepth == 0, "a slot to spare, whole boxes");

  struct State {
    CopyBarrier full[kStages], empty[kStages], known[kEntries], done[kEntries];
    CopyBarrier sums;  // tells of what the blocks of a crew leave for this one
    PartEntry entries[kEntries];
  };
  static constexpr int kSlotsBytes = kStages * kSlotBytes, kStateBytes = 512;
  static_assert(sizeof(State) <= kStateBytes, "barriers and parts");

  // Which steps a reader's warp takes.
  __device__ static int group() { return kGroups == 1 ? 0 : warp_index() / kGroupWarpCount; }
  // Row of the tile of a reader's line i.
  __device__ static int row_of(int i) {
    return warp_index() * kWarpRows % Knobs::kRows + i * kLineTile + lane_line();
  }
  // A barrier of all readers.
  __device__ static void meet() {
    __syncwarp();
    asm volatile("barrier.cta.sync.aligned 1, %0;" ::"n"(kReaders * kWarpLanes) : "memory");
  }

  // One thread; a barrier of the block follows.
  __device__ static void start(State& state) {
    for (int s = 0; s < kStages; ++s) {
      init(state.full[s], kCopiers * kWarpLanes);
      init(state.empty[s], kGroupWarpCount);
    }
    for (int e = 0; e < kEntries; ++e) {
      init(state.known[e], 1);
      init(state.done[e], kReaders);
    }
    init(state.sums, 1);
    fence_init();
  }
};

// What the copying warps do, each with some lines of every step.
template <class T, int kDepth, class Knobs>
class WideCopier {
 public:
  using Ring = WideRing<T, kDepth, Knobs>;
  static constexpr int kKeys = Ring::kKeys, kStages = Ring::kStages;

  __device__ WideCopier(const AttentionArgs& args, char* slots, typename Ring::State& state)
      : args_(args), slots_(slots), state_(state) {}

  // All parts of the block. What is known without reading, or promised to stay as it is, needs not
  // wait for the kernel before.
  __device__ void run() {
    const bool reads = args_.seq_lens != nullptr || args_.first_tokens != nullptr;
    if (reads && !args_.constant_history) wait_once();
    WideParts<Knobs::kRows> parts(args_);
    Part part{};
    for (int number = 0;; ++number) {
      const bool more = parts.next(part);
      const int e = number % Ring::kEntries;
      if (number >= Ring::kEntries) wait(state_.done[e], number / Ring::kEntries % 2 ^ 1);
      if (copier() == 0 && lane() == 0) {
        state_.entries[e].more = more;
        if (more) {
          state_.entries[e].part = part;
          state_.entries[e].last_block = parts.last_block(part);
        }
        arrive(state_.known[e]);
      }
      if (!more) break;
      copy(part);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

 private:
  static constexpr int kOctets = kDepth / kLaneDepth;
  static constexpr int kLinesAtOnce = kWarpLanes / kOctets;
  static constexpr int kLines = kKeys / Knobs::kCopiers;  // of a step, this warp's
  static constexpr int kRounds = kLines / kLinesAtOnce;
  static constexpr int kLookups = (kLines + kWarpLanes - 1) / kWarpLanes;
  static_assert(kRounds * kLinesAtOnce * Knobs::kCopiers == kKeys, "whole rounds");

  __device__ static int copier() { return warp_index() - Ring::kReaders; }

  // Whether the caller promised that the keys up to this one are not being written.
  __device__ bool is_history(const Part& part, int through) const {
    return args_.constant_history && through <= part.sequence.keys - args_.q_len;
  }
  __device__ void wait_once() {
    wait_for_previous();
    waited_ = true;
  }

  __device__ void copy(const Part& part) {
    const int skipped = part.sequence.skipped;
    lowest_ = part.sequence.lowest;
    end_ = min(part.sequence.keys, (skipped + part.last) * kUnitKeys);
    const int64_t octet = lane() % kOctets * kLaneDepth;
    keys_ = static_cast<const T*>(args_.k.at) + part.head * args_.k.head + octet;
    values_ = static_cast<const T*>(args_.v.at) + part.head * args_.v.head + octet;
    const bool dense = args_.block_table == nullptr;
    if (dense) {
      keys_ += part.b * args_.k.page;
      values_ += part.b * args_.v.page;
    }
    const int last = (skipped + part.last) * kUnitKeys;
    for (int key = (skipped + part.first) * kUnitKeys; key < last; key += kKeys) {
      if (!waited_ && !is_history(part, key + kKeys)) wait_once();
      if (reused_) wait(state_.empty[stage_], turn_ ^ 1);
      const int first = key + copier() * kLines;
      dense ? copy_dense(first) : copy_pages(first, part.b);
      arrive_with_copies(state_.full[stage_]);
      if (++stage_ == kStages) {
        stage_ = 0;
        turn_ ^= 1;
        reused_ = true;
      }
    }
  }

  // Round i of a step: a lane's octets of keys and values.
  __device__ void copy_octets(int i, int key, const T* from_keys, const T* from_values) const {
    const int line = copier() * kLines + i * kLinesAtOnce + lane() / kOctets;
    const int octet = lane() % kOctets;
    char* const to = slots_ + stage_ * Ring::kSlotBytes + octet / 8 * (kKeys * kBoxLineBytes) +
                     box_offset(line, octet % 8);
    const bool inside = key >= lowest_ && key < end_;
    copy_octet<Through::kL2Stream>(to, from_keys, inside);
    copy_octet<Through::kL2Stream>(to + Ring::kTileBytes, from_values, inside);
  }

  __device__ void copy_dense(int first) const {
    const int key = first + lane() / kOctets;
    const T* from_keys = keys_ + key * args_.k.token;
    const T* from_values = values_ + key * args_.v.token;
#pragma unroll 4
    for (int i = 0; i < kRounds; ++i) {
      copy_octets(i, key + i * kLinesAtOnce, from_keys, from_values);
      from_keys += kLinesAtOnce * args_.k.token;
      from_values += kLinesAtOnce * args_.v.token;
    }
  }

  // Every lane looks up the places of some lines.
  __device__ void copy_pages(int first, int b) const {
    int64_t at_keys[kLookups], at_values[kLookups];
#pragma unroll
    for (int n = 0; n < kLookups; ++n) {
      const int key = first + n * kWarpLanes + lane();
      const int place = quotient(key, args_.page);
      int page = 0;
      if (key >= lowest_ && key < end_) page = args_.block_table[b * args_.table_row + place];
      const int token = key - place * args_.page_size;
      at_keys[n] = page * args_.k.page + token * args_.k.token;
      at_values[n] = page * args_.v.page + token * args_.v.token;
    }
#pragma unroll 4
    for (int i = 0; i < kRounds; ++i) {
      const int line = i * kLinesAtOnce + lane() / kOctets;
      const int64_t key_at = __shfl_sync(~0u, at_keys[i * kLinesAtOnce / kWarpLanes], line);
      const int64_t value_at = __shfl_sync(~0u, at_values[i * kLinesAtOnce / kWarpLanes], line);
      copy_octets(i, first + line, keys_ + key_at, values_ + value_at);
    }
  }

  const AttentionArgs& args_;
  char* const slots_;
  typename Ring::State& state_;
  int stage_ = 0, lowest_ = 0, end_ = 0;
  uint32_t turn_ = 0;
  bool reused_ = false, waited_ = false;
  const T *keys_ = nullptr, *values_ = nullptr;
};

// A group's place in the ring.
template <class Ring>
class WideReader {
 public:
  __device__ WideReader(char* slots, typename Ring::State& state) : slots_(slots), state_(state) {}

  // The next part; its first step for this group is the group's in the order of all steps.
  __device__ const PartEntry& next_part() {
    if (number_ >= 0) {
      __syncwarp();
      if (lane() == 0) arrive(state_.done[number_ % Ring::kEntries]);
    }
    ++number_;
    const int e = number_ % Ring::kEntries;
    wait(state_.known[e], number_ / Ring::kEntries % 2);
    const PartEntry& entry = state_.entries[e];
    step_ = before_ + Ring::group() - Ring::kGroups;
    if (entry.more) {
      before_ += (entry.part.last - entry.part.first + Ring::kStepUnits - 1) / Ring::kStepUnits;
    }
    return entry;
  }

  // Waits for the next step and returns its slot.
  __device__ int advance() {
    step_ += Ring::kGroups;
    const unsigned turn = static_cast<unsigned>(step_) / Ring::kStages;
    const int slot = step_ - turn * Ring::kStages;
    wait(state_.full[slot], turn % 2);
    fence_proxies();
    return slot;
  }
  __device__ const char* at(int slot) const { return slots_ + slot * Ring::kSlotBytes; }

  // Nothing of a slot is needed any more.
  __device__ void release(int slot) {
    __syncwarp();
    if (lane() == 0) arrive(state_.empty[slot]);
  }

 private:
  char* const slots_;
  typename Ring::State& state_;
  int number_ = -1, before_ = 0, step_ = 0;
};

}  // namespace mirage::tile
