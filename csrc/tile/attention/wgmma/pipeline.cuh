// Keys and values on their way to the warpgroups of a block, copied by warps that do nothing else.
//
// Steps come in the order of the keys and are dealt out to the groups of warpgroups. A slot has a
// step's keys and its values, which come and go on their own: a barrier for each tells of their
// arrival, another one that their readers are done. Half of the copying warps copy keys, the others
// values. Copies run ahead across the borders of parts; what readers have to know of a part comes
// the same way. Where caches have boxes, those of a step that is seen as a whole are asked for by a
// lane each; all others are copied line by line. (Readers that copied, too, would wait for their
// own copies: a fence for the tensor core waits for them all.)
#pragma once

#include "tile/attention/wgmma/tma.cuh"
#include "tile/attention/wgmma/scheduler.cuh"
#include "tile/attention/wgmma/products.cuh"
#include "tile/dependent.cuh"
#include "tile/edges.cuh"

namespace mirage::tile {

// A part as readers see it.
struct PartEntry {
  Part part;
  CrewShare units;  // that are its block's
  int last_block;   // that has some of its segment
  bool more;        // whether there is such a part
};

// Whether a kernel sums lines of its keys, which its knobs say.
template <class Knobs, class = void>
constexpr bool kSumsKeys = false;
template <class Knobs>
constexpr bool kSumsKeys<Knobs, std::void_t<decltype(Knobs::kKeySums)>> = Knobs::kKeySums > 0;

template <class T, int kDepth, class Knobs>
struct WideRing {
  static constexpr int kKeys = Knobs::kKeys, kStages = Knobs::kStages, kCopiers = Knobs::kCopiers;
  static constexpr int kStepUnits = kKeys / kUnitKeys;
  static constexpr int kGroupWarpCount = Knobs::kRows / kWarpRows;  // warps that read a step
  static constexpr int kReaders = Knobs::kWarps - kCopiers;
  static constexpr int kGroups = kReaders / kGroupWarpCount;
  static constexpr int kTileBytes = kKeys * kDepth * 2;
  static constexpr int kSlotBytes = 2 * kTileBytes;  // keys, then values
  // Where both warpgroups sum a step's lines, every lane says that it is done: racecheck follows
  // no other arrival.
  static constexpr bool kAllRelease = kSumsKeys<Knobs> && kGroups == 1;
  static constexpr int kKeyReleases = kGroupWarpCount * (kAllRelease ? kWarpLanes : 1);
  static constexpr int kEntries = 2;            // parts that are known at once
  static constexpr int kShares = kCopiers / 2;  // of a tile, for the warps that copy it
  static_assert(kStages > 2 * kGroups && kDepth % kBoxDepth == 0, "a slot to spare, whole boxes");

  struct State {
    CopyBarrier full[2][kStages], empty[2][kStages];  // keys, values
    CopyBarrier known[kEntries], done[kEntries];
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
    for (int s = 0; s < 2 * kStages; ++s) {
      init(state.full[s / kStages][s % kStages], kShares * kWarpLanes);
      init(state.empty[s / kStages][s % kStages], s < kStages ? kKeyReleases : kGroupWarpCount);
    }
    for (int e = 0; e < kEntries; ++e) {
      init(state.known[e], 1);
      init(state.done[e], kReaders * kWarpLanes);
    }
    init(state.sums, 1);
    fence_init();
  }
};

// What the copying warps do, each with some lines of the keys, or of the values, of every step.
template <class T, int kDepth, class Knobs>
class WideCopier {
 public:
  using Ring = WideRing<T, kDepth, Knobs>;
  static constexpr int kKeys = Ring::kKeys, kStages = Ring::kStages;

  __device__ WideCopier(const AttentionArgs& args, char* slots, typename Ring::State& state)
      : args_(args),
        cache_(side() == 0 ? args.k : args.v),
        map_(side() == 0 ? args.k_boxes : args.v_boxes),
        slots_(slots + side() * Ring::kTileBytes),
        full_(state.full[side()]),
        empty_(state.empty[side()]),
        state_(state),
        boxes_(args) {
    if (args.boxed && share() == 0 && lane() == 0) prefetch(map_);
  }

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
      // Without pages boxes may begin anywhere.
      const bool rounds = args_.boxed && args_.block_table != nullptr;
      const CrewShare units = more ? parts.share(part, rounds ? Ring::kStepUnits : 1) : CrewShare{};
      if (copier() == 0 && lane() == 0) {
        state_.entries[e].more = more;
        if (more) {
          state_.entries[e].part = part;
          state_.entries[e].units = units;
          state_.entries[e].last_block = parts.last_block(part);
        }
        arrive(state_.known[e]);
      }
      if (!more) break;
      // With the readers, who say that the crew may leave its sums: compute-sanitizer lets nobody
      // past who has come before all have, or are gone.
      __syncwarp();
      if (cluster_size() > 1) arrive_cluster();
      copy(part, units);
      if (cluster_size() > 1) wait_cluster();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

 private:
  static constexpr int kOctets = kDepth / kLaneDepth;
  static constexpr int kLinesAtOnce = kWarpLanes / kOctets;
  static constexpr int kLines = kKeys / Ring::kShares;  // of a step, this warp's
  static constexpr int kRounds = kLines / kLinesAtOnce;
  static_assert(kRounds * kLinesAtOnce * Ring::kShares == kKeys, "whole rounds");

  __device__ static int copier() { return warp_index() - Ring::kReaders; }
  __device__ static int side() { return copier() % 2; }  // keys, values
  __device__ static int share() { return copier() / 2; }

  // Whether the caller promised that the keys up to this one are not being written.
  __device__ bool is_history(const Part& part, int through) const {
    return args_.constant_history && through <= part.sequence.keys - args_.q_len;
  }
  __device__ void wait_once() {
    wait_for_previous();
    waited_ = true;
  }

  __device__ void copy(const Part& part, CrewShare units) {
    const int skipped = part.sequence.skipped;
    lowest_ = part.sequence.lowest;
    end_ = min(part.sequence.keys, (skipped + units.last) * kUnitKeys);
    lines_ =
        static_cast<const T*>(cache_.at) + part.head * cache_.head + lane() % kOctets * kLaneDepth;
    const bool dense = args_.block_table == nullptr;
    if (dense) lines_ += part.b * cache_.page;
    const int begin = (skipped + units.first) * kUnitKeys;
    const int last = (skipped + units.last) * kUnitKeys;
    for (int key = begin; key < last; key += kKeys) {
      if (!waited_ && !is_history(part, key + kKeys)) wait_once();
      if (key == begin) look_up(key, part.b);
      if (reused_) wait(empty_[stage_], turn_ ^ 1);
      if (args_.boxed && key >= lowest_ && key + kKeys <= end_ && boxes_.may_begin(args_, key)) {
        copy_boxes(key, part);
      } else {
        const int first = key + share() * kLines;
        dense ? copy_dense(first) : copy_pages(first, part.b);
        arrive_after_lines();
      }
      look_up(key + kKeys, part.b);
      if (++stage_ == kStages) {
        stage_ = 0;
        turn_ ^= 1;
        reused_ = true;
      }
    }
  }

  // Of many small boxes every warp asks for some, as one takes long to.
  __device__ int own_box() const {
    if (boxes_.tokens() < kKeys) return lane() * Ring::kShares + share();
    return share() == 0 ? lane() : kWarpLanes;
  }
  // The page of this lane's box of the step at `key`, before there is room for it.
  __device__ void look_up(int key, int b) {
    page_ = b;
    if (args_.block_table == nullptr || !args_.boxed) return;
    key += boxes_.token(own_box());
    if (key < lowest_ || key >= end_) return;
    page_ = args_.block_table[b * args_.table_row + quotient(key, args_.page)];
  }
  __device__ void copy_boxes(int key, const Part& part) const {
    if (share() == 0 && lane() == 0) {
      await_bytes(full_[stage_], Ring::kTileBytes);
      arrive_for(full_[stage_], Ring::kShares * kWarpLanes);
    }
    __syncwarp();
    const int box = own_box();
    if (!boxes_.has(box)) return;
    int token = key + boxes_.token(box);
    if (args_.block_table != nullptr) token = remainder(token, args_.page);
    const UnitPlace from{token, part.head, page_};
    copy_box(slots_ + stage_ * Ring::kSlotBytes + boxes_.place(box), map_, boxes_.depth(box), from,
             full_[stage_]);
  }
  // In a call with boxes readers do not make lines seen to the tensor cores, so it is done here.
  __device__ void arrive_after_lines() const {
    if (!args_.boxed) {
      arrive_with_copies(full_[stage_]);
      return;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_proxies();
    arrive(full_[stage_]);
  }

  // Round i of a step: a lane's octet.
  __device__ void copy_own(int i, int key, const T* from) const {
    const int line = share() * kLines + i * kLinesAtOnce + lane() / kOctets;
    const int octet = lane() % kOctets;
    char* const to = slots_ + stage_ * Ring::kSlotBytes + octet / 8 * (kKeys * kBoxLineBytes) +
                     box_offset(line, octet % 8);
    copy_octet<Through::kL2Stream>(to, from, key >= lowest_ && key < end_);
  }

  __device__ void copy_dense(int first) const {
    const int key = first + lane() / kOctets;
    const T* from = lines_ + key * cache_.token;
#pragma unroll 4
    for (int i = 0; i < kRounds; ++i) {
      copy_own(i, key + i * kLinesAtOnce, from);
      from += kLinesAtOnce * cache_.token;
    }
  }

  // Every lane looks up the places of some lines.
  __device__ void copy_pages(int first, int b) const {
    constexpr int kKnown = kLines < kWarpLanes ? kLines : kWarpLanes;  // at once
    int64_t at[kLines / kKnown];
#pragma unroll
    for (int n = 0; n < kLines / kKnown; ++n) {
      const int key = first + n * kKnown + lane();
      const int place = quotient(key, args_.page);
      int page = 0;
      if (key >= lowest_ && key < end_) page = args_.block_table[b * args_.table_row + place];
      const int token = key - place * args_.page_size;
      at[n] = page * cache_.page + token * cache_.token;
    }
#pragma unroll
    for (int n = 0; n < kLines / kKnown; ++n) {
#pragma unroll 4
      for (int i = 0; i < kKnown / kLinesAtOnce; ++i) {
        const int line = i * kLinesAtOnce + lane() / kOctets;
        const int64_t own = __shfl_sync(~0u, at[n], line);
        copy_own(n * (kKnown / kLinesAtOnce) + i, first + n * kKnown + line, lines_ + own);
      }
    }
  }

  const AttentionArgs& args_;
  const mirage::Cache& cache_;
  const CUtensorMap& map_;
  char* const slots_;  // the first one's tile
  CopyBarrier *const full_, *const empty_;
  typename Ring::State& state_;
  const StepBoxes<kKeys, kDepth> boxes_;
  int stage_ = 0, lowest_ = 0, end_ = 0, page_ = 0;
  uint32_t turn_ = 0;
  bool reused_ = false, waited_ = false;
  const T* lines_ = nullptr;
};

// A group's place in the ring.
template <class Ring>
class WideReader {
 public:
  __device__ WideReader(char* slots, typename Ring::State& state, bool boxed)
      : slots_(slots), state_(state), boxed_(boxed) {}

  // The next part; its first step for this group is the group's in the order of all steps.
  __device__ const PartEntry& next_part() {
    if (number_ >= 0) arrive(state_.done[number_ % Ring::kEntries]);
    ++number_;
    const int e = number_ % Ring::kEntries;
    wait(state_.known[e], number_ / Ring::kEntries % 2);
    const PartEntry& entry = state_.entries[e];
    step_ = before_ + Ring::group() - Ring::kGroups;
    if (entry.more) {
      before_ += (entry.units.last - entry.units.first + Ring::kStepUnits - 1) / Ring::kStepUnits;
    }
    return entry;
  }

  // Waits for the next step's keys and returns their slot.
  __device__ int advance() {
    step_ += Ring::kGroups;
    const unsigned turn = static_cast<unsigned>(step_) / Ring::kStages;
    const int slot = step_ - turn * Ring::kStages;
    turn_ = turn % 2;
    arrived(state_.full[0][slot], turn_);
    return slot;
  }
  // How often the ring went round before that slot, modulo two.
  __device__ unsigned turn() const { return turn_; }
  __device__ void wait_for_values(int slot, unsigned turn) const {
    arrived(state_.full[1][slot], turn);
  }
  __device__ const char* at(int slot) const { return slots_ + slot * Ring::kSlotBytes; }

  // Nothing of a slot's keys, or of its values, is needed any more.
  __device__ void release_keys(int slot) const {
    Ring::kAllRelease ? arrive(state_.empty[0][slot]) : release(state_.empty[0][slot]);
  }
  __device__ void release_values(int slot) const { release(state_.empty[1][slot]); }

 private:
  __device__ void arrived(CopyBarrier& full, unsigned turn) const {
    wait(full, turn);
    if (!boxed_) fence_proxies();
  }
  __device__ static void release(CopyBarrier& empty) {
    __syncwarp();
    if (lane() == 0) arrive(empty);
  }

  char* const slots_;
  typename Ring::State& state_;
  const bool boxed_;
  int number_ = -1, before_ = 0, step_ = 0;
  unsigned turn_ = 0;
};

}  // namespace mirage::tile
