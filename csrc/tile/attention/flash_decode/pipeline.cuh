// Keys and values on their way: every warp copies its own units, a few steps ahead.
//
// As in pipeline.cuh no barrier of the block is needed; one of the warp's own for each slot tells
// of a step's arrival. Copies run on across the borders of parts, so memory stays busy while the
// warps of a block meet. A lane looks up the page of one unit, or of one line where units lie in
// several pages, a step before the first copy that needs it.
#pragma once

#include "tile/attention/tma.cuh"
#include "tile/attention/dynamic_scheduler.cuh"
#include "tile/dependent.cuh"
#include "tile/edges.cuh"

namespace mirage::tile {

// A slot holds a step's keys and values; of latent attention (kMore > 0) what are both, and kMore
// further elements of each key, from a cache of their own.
template <class T, int kDepth, class Knobs, int kMore = 0>
class KeyRing {
 public:
  static constexpr int kKeys = Knobs::kKeys, kWarps = Knobs::kWarps, kStages = Knobs::kStages;
  static_assert(kKeys == kUnitKeys, "a step is a unit");
  static_assert((kWarps & (kWarps - 1)) == 0, "warps take turns");
  static constexpr int kSecondDepth = kMore > 0 ? kMore : kDepth;
  static constexpr int kTileBytes = UnitLines<T, kDepth>::kBytes;
  static constexpr int kSlotBytes = kTileBytes + UnitLines<T, kSecondDepth>::kBytes;
  static constexpr int kWarpBytes = kStages * kSlotBytes;
  static constexpr int kBarriersAt = kWarps * kWarpBytes;
  static constexpr int kBarrierBytes = kWarps * kStages * static_cast<int>(sizeof(CopyBarrier));
  static constexpr int kClaimsAt = (kBarriersAt + kBarrierBytes + 15) / 16 * 16;
  static constexpr bool kDeals = kDealsOf<Knobs>;
  static constexpr int kBytes = kClaimsAt + (kDeals ? Claims::kBytes : 0);
  static_assert(!kDeals || kBytes % 16 == 0, "octets follow");
  static_assert(!kDeals || kStages < Claims::kLeastSteps - Claims::kSteps,
                "nothing is claimed before the kernel before has ended");
  using Stretch = std::conditional_t<kDeals, DealtParts<Knobs::kRows>, Parts<Knobs::kRows>>;

  // Where all multiprocessors copy and none began early, few copies ahead are better, if they are
  // large: slots of a call that promises nothing and leaves no room for another.
  static constexpr int kStepBytes = kWarps * Knobs::kBlocks * kSlotBytes;  // of a multiprocessor
  static constexpr bool kCopiesMuch =
      Knobs::kRows == kLineTile && kMore == 0 && kStepBytes >= 64 * 1024;
  static constexpr int kFewStages = kCopiesMuch ? 2 : kStages;

  // `shared`: a multiple of kBoxAtom.
  __device__ KeyRing(const AttentionArgs& args, char* shared)
      : args_(args),
        shared_(shared),
        stages_(args.constant_history || leaves_room(args, Knobs::kBlocks) ? kStages : kFewStages),
        one_less_(cluster_size() == 2 && leaves_room(args, Knobs::kBlocks)) {
    if (elected()) {
      for (int s = 0; s < stages_; ++s) init(landed(s), args.boxed ? 1 : kWarpLanes);
      fence_init();
      if (args.boxed && warp_index() == 0) {
        prefetch(args.k_boxes);
        prefetch(args.v_boxes);
      }
    }
    if constexpr (kDeals) claims().reset();
    __syncwarp();
  }

  // A call with boxes of units, if units lie in one page each.
  static AttentionArgs with_boxes(AttentionArgs args) {
    args.boxed = args.page.value % kKeys == 0 &&
                 encode_units<T, kDepth>(&args.k_boxes, args, args.k) &&
                 encode_units<T, kSecondDepth>(&args.v_boxes, args, args.v);
    return args;
  }

  // The parts of this block's stretch, or those that it claims.
  __device__ Stretch parts(const Lengths& lengths) const {
    if constexpr (kDeals) {
      return Stretch(args_, lengths, claims(), Claims::kLeastSteps * kWarps);
    } else {
      return Stretch(args_, lengths);
    }
  }

  // Makes a part the first one (`more`: there is one), and looks up its pages.
  __device__ void aim(const Stretch& parts, const Part& part, bool more) {
    parts_ = parts;
    part_ = part;
    more_ = more;
    unit_ = first_unit(part_);
    turn_ = kWarpLanes;
    settle();
  }

  // The pages that are known, and what the table has now: the kernel before may write it meanwhile.
  __device__ int pages() const { return page_; }
  __device__ int look_again(bool wanted) const {
    int page = page_;
    load_if(wanted && looked_up_ != nullptr, looked_up_, page);
    return page;
  }
  // With lengths that are not checked yet the table may have the number of no page.
  __device__ int bounded(int page) const {
    return min(static_cast<unsigned>(page), args_.pages - 1);
  }

  // Lets the next kernel start when this warp has asked for all its steps.
  __device__ void let_next_start_then() {
    tells_ = more_;
    if (!more_) let_next_start();
  }

  // Forgets what was asked for.
  __device__ void drop() {
#pragma unroll 1
    for (int slot = 0; slot < stages_; ++slot) {
      if (slot >= asked_ && (!args_.boxed || elected())) arrive(landed(slot));
      wait(landed(slot), turns_);
    }
    turns_ ^= 1;
  }

  // Prepares the copies of the first steps, so that few instructions start them, and brings what
  // the first one reads into L2: nothing is read yet, so it may still change.
  __device__ void arm() {
    if (!more_ || !args_.boxed) return;
#pragma unroll
    for (int i = 0; i < kArmed; ++i) {
      const int page = __shfl_sync(~0u, page_, i);
      if (i >= stages_ - 1 || unit_ + i * stride() >= part_.last) continue;
      places_[i] = {token_of(key() + i * stride() * kUnitKeys), part_.head, page};
      armed_ = i + 1;
      if (!elected()) continue;
      expect(landed(i), kSlotBytes);
      if (i > 0) continue;
      prefetch_unit<T, kDepth>(args_.k_boxes, places_[i]);
      prefetch_unit<T, kSecondDepth>(args_.v_boxes, places_[i]);
    }
  }

  // Asks for the first steps; those with new keys when the kernel before has ended. `steps`: the
  // first part has some for this warp. With a promise, and where all multiprocessors copy, it asks
  // for all that slots hold, not for the last of them when the first step begins: 16 sequences of
  // 1024 keys and 8 heads take 16.7 us so, 17.1 otherwise. Where crews leave room for another call,
  // whose copies these would disturb, 0.4 us are lost.
  __device__ void fill(bool steps) {
    constexpr bool kMay = Knobs::kRows == kLineTile && kMore == 0;
    ahead_ = kMay && steps && args_.constant_history && !leaves_room(args_, Knobs::kBlocks);
    asked_ = armed_;
    if (armed_ > 0) fire();
#pragma unroll 1
    for (int slot = armed_; slot < stages_ - !ahead_; ++slot) {
      if (key() + kKeys > part_.sequence.keys - part_.sequence.tokens) wait_for_previous();
      asked_ += more_;
      issue(slot);
    }
    armed_ = 0;
  }

  // Units of a warp lie so many apart: a crew's blocks take turns, then their warps.
  __device__ static int stride() {
    if constexpr (!kHasCrews<kDepth>) return kWarps;
    return kWarps * cluster_size();
  }

  // The first of a part's units that is this warp's.
  __device__ static int first_unit(const Part& part) {
    if constexpr (!kHasCrews<kDepth>) return part.first + warp_index();
    return part.first + warp_index() * cluster_size() + cluster_rank();
  }

  // A slot that holds nothing until the next advance().
  __device__ char* free_slot() const { return begin() + before(full_) * kSlotBytes; }

  // Waits for the next step of this warp, a unit of a part, whose slot it becomes.
  __device__ const char* advance(const Part& part, int unit) {
    __syncwarp();  // all lanes have read the step before, whose slot is written now
    if (one_less()) wait(landed(full_), turns_);
    if (!ahead_) issue(before(full_));
    ahead_ = false;
    wait(landed(full_), turns_);
    char* const slot = begin() + full_ * kSlotBytes;
    if (++full_ == stages_) {
      full_ = 0;
      turns_ ^= 1;
    }
    const int key = (part.sequence.skipped + unit) * kUnitKeys;
    if (key < part.sequence.lowest || key + kKeys > part.sequence.keys) clear(slot, part, key);
    return slot;
  }

  // Brings the queries of a part to come into L2.
  __device__ void prefetch_queries() const {
    constexpr int kLineElements = 128 / sizeof(T);
    constexpr int kLines = (kDepth + kLineElements - 1) / kLineElements;
    const int rows = part_.template rows<Knobs::kRows>(args_);
#pragma unroll 1
    for (int i = lane(); i < rows * kLines; i += kWarpLanes) {
      const QueryPlace at = part_.template place<Knobs::kRows>(args_, i / kLines);
      prefetch(static_cast<const T*>(args_.q.at) + at.token * args_.q.token +
               at.head * args_.q.head + i % kLines * kLineElements);
    }
  }

 private:
  __device__ CopyBarrier& landed(int slot) const {
    return reinterpret_cast<CopyBarrier*>(shared_ + kBarriersAt)[warp_index() * kStages + slot];
  }
  // Whether a step is asked for when the one before it has come, not earlier. That is better for
  // crews of two large blocks that leave room for another call's: 16 sequences of 4096 keys and two
  // heads take 19.5 us so, 20.8 otherwise. Larger crews gain nothing, small blocks lose.
  __device__ bool one_less() const {
    constexpr bool kLarge = Knobs::kBlocks == 1 && Knobs::kRows == kLineTile && kMore == 0;
    if constexpr (!kLarge || !kHasCrews<kDepth>) return false;
    return one_less_;
  }
  __device__ char* begin() const { return shared_ + warp_index() * kWarpBytes; }
  // The first key of the unit that is next.
  __device__ int key() const { return (part_.sequence.skipped + unit_) * kUnitKeys; }
  __device__ int before(int slot) const { return (slot == 0 ? stages_ : slot) - 1; }

  // Starts the copies of the upcoming unit, if there is one, and looks up the page of the next.
  __device__ void issue(int slot) {
    if (!more_) return;
    args_.boxed ? copy_boxes(slot) : copy_lines(slot);
    unit_ += stride();
    ++turn_;
    if constexpr (kDeals) parts_.claim(args_, (part_.last - unit_ + kWarps - 1) / kWarps);
    settle();
  }

  __device__ Claims claims() const { return Claims(shared_ + kClaimsAt); }

  // Starts the copies that are prepared.
  __device__ void fire() {
#pragma unroll
    for (int i = 0; i < kArmed; ++i) {
      if (i < armed_ && elected()) copy_boxes(i, places_[i]);
    }
    unit_ += armed_ * stride();
    turn_ += armed_;
    settle();
  }

  // Zeros in place of lines that nobody sees: pages may hold anything there.
  __device__ void clear(char* slot, const Part& part, int first) const {
    constexpr int kLineOctets = kBoxLineBytes / kOctetBytes;
#pragma unroll 1
    for (int i = lane(); i < kSlotBytes / kOctetBytes; i += kWarpLanes) {
      const int key = first + i / kLineOctets % kKeys;
      const bool seen = key >= part.sequence.lowest && key < part.sequence.keys;
      if (!seen) *reinterpret_cast<uint4*>(slot + i * kOctetBytes) = uint4{};
    }
    fence_proxies();
    __syncwarp();
  }

  // Goes on to the part that has a unit for this warp, and looks up pages where none are known.
  __device__ void settle() {
    while (more_ && unit_ >= part_.last) {
      more_ = parts_.next(part_);
      if (!more_ && tells_) let_next_start();
      if (!more_) return;
      unit_ = first_unit(part_);
      turn_ = kWarpLanes;
      if (warp_index() == 0) prefetch_queries();
    }
    if (!more_) return;
    if (!args_.boxed) {
      page_ = page_of(key() + lane() % kKeys, 1);
    } else if (turn_ >= kWarpLanes) {
      turn_ = 0;
      const int key_of_lane = key() + lane() * stride() * kUnitKeys;
      token_ = token_of(key_of_lane);
      page_ = page_of(key_of_lane, kKeys);
    }
  }

  // The page of the next `keys` keys; of those that nobody sees there is none.
  __device__ int page_of(int key, int keys) {
    if (args_.block_table == nullptr) return part_.b;
    const bool seen = key < part_.sequence.keys && key + keys > part_.sequence.lowest;
    const unsigned place = quotient(key, args_.page);
    looked_up_ = seen ? args_.block_table + part_.b * args_.table_row + place : nullptr;
    return looked_up_ == nullptr ? 0 : bounded(*looked_up_);
  }

  __device__ int token_of(int key) const {
    return args_.block_table == nullptr ? key : remainder(key, args_.page);
  }

  __device__ void copy_boxes(int slot) const {
    const int page = __shfl_sync(~0u, page_, turn_), token = __shfl_sync(~0u, token_, turn_);
    if (!elected()) return;
    expect(landed(slot), kSlotBytes);
    copy_boxes(slot, {token, part_.head, page});
  }
  __device__ void copy_boxes(int slot, UnitPlace from) const {
    char* const to = begin() + slot * kSlotBytes;
    copy_unit<T, kDepth>(to, args_.k_boxes, from, landed(slot));
    copy_unit<T, kSecondDepth>(to + kTileBytes, args_.v_boxes, from, landed(slot));
  }

  // Octet by octet, where units may lie in several pages. A lane knows where a line begins: the
  // first sixteen keys, the others values.
  __device__ void copy_lines(int slot) const {
    const mirage::Cache& cache = lane() < kKeys ? args_.k : args_.v;
    const int64_t token = token_of(key() + lane() % kKeys);
    const T* const line = static_cast<const T*>(cache.at) + page_ * cache.page +
                          token * cache.token + part_.head * cache.head;
    copy_tile<kDepth>(begin() + slot * kSlotBytes, line, 0);
    copy_tile<kSecondDepth>(begin() + slot * kSlotBytes + kTileBytes, line, kKeys);
    arrive_with_copies(landed(slot));
  }

  // The lines that lanes from `first` on know of; those that nobody sees read as zero.
  template <int kLong>
  __device__ void copy_tile(char* to, const T* known, int first) const {
    constexpr int kOctets = kLong / kLaneDepth;
    // Lanes to a line, a power of two; the last of them may have nothing to copy.
    constexpr int kLanes = kOctets <= 8 ? 8 : kOctets <= 16 ? 16 : 32;
#pragma unroll 4
    for (int i = lane() / kLanes; i < kKeys; i += kWarpLanes / kLanes) {
      const auto at = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(known), first + i);
      const T* const line = reinterpret_cast<const T*>(at);
      const bool seen = key() + i >= part_.sequence.lowest && key() + i < part_.sequence.keys;
#pragma unroll
      for (int octet = lane() % kLanes; octet < kOctets; octet += kLanes) {
        copy_octet<Through::kL2Stream>(to + UnitLines<T, kLong>::place(i, octet),
                                       line + octet * kLaneDepth, seen);
      }
    }
  }

  const AttentionArgs& args_;
  Stretch parts_;
  Part part_{};
  char* const shared_;
  const int stages_;  // of the ring
  const bool one_less_;
  static constexpr int kArmed = kStages > 2 ? 2 : 1;
  UnitPlace places_[kArmed];
  int armed_ = 0;       // copies that are prepared
  int asked_ = 0;       // steps at the start
  int full_ = 0;        // the slot of the next step
  uint32_t turns_ = 0;  // of the ring, modulo two
  bool more_ = false;
  bool tells_ = false;  // the next kernel
  bool ahead_ = false;  // the next step has asked for its copies
  const int32_t* looked_up_ = nullptr;
  int unit_ = 0;
  int page_ = 0, token_ = 0, turn_ = 0;  // a lane's, of unit or line `lane`; the unit that is next
};

}  // namespace mirage::tile
