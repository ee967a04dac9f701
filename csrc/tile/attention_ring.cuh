// Keys and values on their way: every warp copies its own units, kStages - 1 steps ahead.
//
// As in pipeline.cuh no barrier of the block is needed. Copies run on across the borders of parts,
// so memory stays busy while the warps of a block meet. A lane looks up the page of one unit, or of
// one line where units lie in several pages, a step before the first copy that needs it.
#pragma once

#include "tile/attention_parts.cuh"
#include "tile/attention_sums.cuh"
#include "tile/dependent.cuh"
#include "tile/edges.cuh"
#include "tile/pipeline.cuh"

namespace mirage::tile {

// A slot holds a step's keys and values; of latent attention (kMore > 0) what are both, and kMore
// further elements of each key, from a cache of their own.
template <class T, int kDepth, class Knobs, int kMore = 0>
class KeyRing {
 public:
  static constexpr int kKeys = Knobs::kKeys, kWarps = Knobs::kWarps, kStages = Knobs::kStages;
  static_assert(kKeys == kUnitKeys, "a step is a unit");
  static_assert((kWarps & (kWarps - 1)) == 0, "warps take turns");
  using Line = SharedLines<T, kDepth>;
  static constexpr int kTileBytes = kKeys * Line::kPitch;
  static constexpr int kSecondDepth = kMore > 0 ? kMore : kDepth;
  static constexpr int kSlotBytes = kTileBytes + kKeys * SharedLines<T, kSecondDepth>::kPitch;
  static constexpr int kWarpBytes = kStages * kSlotBytes;
  static constexpr int kBytes = kWarps * kWarpBytes;

  __device__ KeyRing(const AttentionArgs& args, char* shared)
      : args_(args), begin_(shared + warp_index() * kWarpBytes) {}

  // Makes a part the first one (`more`: there is one), and looks up its pages.
  __device__ void aim(const Parts<Knobs::kRows>& parts, const Part& part, bool more) {
    parts_ = parts;
    part_ = part;
    more_ = more;
    unit_ = first_unit(part_);
    turn_ = kWarpLanes;
    settle();
  }

  // Looks up the same pages again: the kernel before may have written them meanwhile.
  __device__ void look_again() {
    if (looked_up_ != nullptr) page_ = looked_up();
  }

  // Forgets what was asked for.
  __device__ static void drop() { wait_copies<0>(); }

  // Brings the first unit to come into L2: nothing is read, so it may be one that still changes.
  __device__ void prefetch_keys() const {
    constexpr int kLineElements = 128 / sizeof(T);
    constexpr int kPieces = (kDepth + kLineElements - 1) / kLineElements;  // of a key's line
    const int page = __shfl_sync(~0u, page_, 0);
    if (!more_ || !pages_hold_units()) return;
#pragma unroll
    for (int i = lane(); i < kKeys * kPieces; i += kWarpLanes) {
      if (key_ + i / kPieces >= part_.sequence.keys) return;
      const int token = token_of(key_) + i / kPieces, element = i % kPieces * kLineElements;
      prefetch(static_cast<const T*>(args_.k.at) + line_at(args_.k, page, token) + element);
      if constexpr (kMore > 0) continue;
      prefetch(static_cast<const T*>(args_.v.at) + line_at(args_.v, page, token) + element);
    }
  }

  // Asks for the first steps; those with new keys when the kernel before has ended.
  __device__ void fill() {
    empty_ = begin_;
#pragma unroll 1
    for (int s = 0; s < kStages - 1; ++s) {
      if (key_ + kKeys > part_.sequence.keys - part_.sequence.tokens) wait_for_previous();
      issue();
    }
    full_ = begin_ + (kStages - 1) * kSlotBytes;  // `advance` goes on from here
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
  __device__ char* free_slot() const { return empty_; }

  // Waits for the next step of this warp, whose slot it becomes.
  __device__ const char* advance() {
    __syncwarp();  // all lanes have read the step before, whose slot is written now
    issue();
    wait_copies<kStages - 1>();
    __syncwarp();  // the other lanes' copies have landed, too
    full_ = full_ + kSlotBytes == begin_ + kWarpBytes ? begin_ : full_ + kSlotBytes;
    return full_;
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
  static constexpr int kOctets = kDepth / kLaneDepth;
  // Lanes to a line, a power of two; the last of them may have nothing to copy.
  static constexpr int kLineLanes = kOctets <= 8 ? 8 : kOctets <= 16 ? 16 : 32;
  static constexpr int kLinesAtOnce = kWarpLanes / kLineLanes;
  static constexpr int kCopies = kKeys / kLinesAtOnce;
  // Addresses are computed a step ahead where registers are left.
  static constexpr bool kAimsAhead = Knobs::kRows == kLineTile && kMore == 0;

  __device__ bool pages_hold_units() const {
    return args_.block_table == nullptr || args_.page.value % kKeys == 0;
  }

  // Starts the copies of the upcoming unit, if there is one, and looks up the page of the next.
  __device__ void issue() {
    if (more_) {
      if constexpr (kMore > 0) {
        copy_apart<kDepth>(empty_, args_.k);
        copy_apart<kMore>(empty_ + kTileBytes, args_.v);
      } else {
        pages_hold_units() ? copy_within_page() : copy_by_lines();
      }
      unit_ += stride();
      ++turn_;
      settle();
    }
    commit_copies();
    empty_ = empty_ + kSlotBytes == begin_ + kWarpBytes ? begin_ : empty_ + kSlotBytes;
  }

  // Goes on to the part that has a unit for this warp, and looks up pages where none are known.
  __device__ void settle() {
    while (more_ && unit_ >= part_.last) {
      more_ = parts_.next(part_);
      if (!more_) return;
      unit_ = first_unit(part_);
      turn_ = kWarpLanes;
      if (warp_index() == 0) prefetch_queries();
    }
    if (!more_) return;
    key_ = (part_.sequence.skipped + unit_) * kUnitKeys;
    if (!pages_hold_units()) {
      page_ = page_of(key_ + lane() % kKeys, 1);
      return;
    }
    if (turn_ >= kWarpLanes) {
      turn_ = 0;
      page_ = page_of(key_ + lane() * stride() * kUnitKeys, kKeys);
    }
    if constexpr (kAimsAhead) {
      key_from_ = lane_from(args_.k);
      value_from_ = lane_from(args_.v);
    }
  }

  // Where this lane's copies of the unit begin, but for the page.
  __device__ const T* lane_from(const mirage::Cache& cache) const {
    const int token = token_of(key_) + lane() / kLineLanes;
    const int element = lane() % kLineLanes * kLaneDepth;
    return static_cast<const T*>(cache.at) + line_at(cache, token) + element;
  }

  // The page of the next `keys` keys; of those that nobody sees there is none.
  __device__ int page_of(int key, int keys) {
    if (args_.block_table == nullptr) return part_.b;
    const bool seen = key < part_.sequence.keys && key + keys > part_.sequence.lowest;
    const unsigned place = quotient(key, args_.page);
    looked_up_ = seen ? args_.block_table + part_.b * args_.table_row + place : nullptr;
    return looked_up();
  }

  // With lengths that are not checked yet it may be the number of no page.
  __device__ int looked_up() const {
    if (looked_up_ == nullptr) return 0;
    return min(static_cast<unsigned>(*looked_up_), args_.pages - 1);
  }

  __device__ int token_of(int key) const {
    return args_.block_table == nullptr ? key : remainder(key, args_.page);
  }

  // In a page.
  __device__ int64_t line_at(const mirage::Cache& cache, int token) const {
    return token * cache.token + part_.head * cache.head;
  }
  __device__ int64_t line_at(const mirage::Cache& cache, int page, int token) const {
    return page * cache.page + line_at(cache, token);
  }

  // One copy of keys and values each: a lane's octet of line i * kLinesAtOnce + its own.
  __device__ void copy_line(int i, const T* key, const T* value) const {
    const int line = i * kLinesAtOnce + lane() / kLineLanes, octet = lane() % kLineLanes;
    const int k = key_ + line;  // lines that nobody sees read as zero
    const bool inside = k >= part_.sequence.lowest && k < part_.sequence.keys;
    char* const to = empty_ + Line::offset(line, octet);
    if (kOctets == kLineLanes || octet < kOctets) {
      copy_octet<Through::kL2Stream>(to, key, inside);
      copy_octet<Through::kL2Stream>(to + kTileBytes, value, inside);
    }
  }

  __device__ void copy_within_page() const {
    const int page = __shfl_sync(~0u, page_, turn_);
    const T* key = (kAimsAhead ? key_from_ : lane_from(args_.k)) + page * args_.k.page;
    const T* value = (kAimsAhead ? value_from_ : lane_from(args_.v)) + page * args_.v.page;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_line(i, key, value);
      key += kLinesAtOnce * args_.k.token;
      value += kLinesAtOnce * args_.v.token;
    }
  }

  // Where a unit may lie in several pages.
  __device__ void copy_by_lines() const {
    const int first = lane() / kLineLanes, octet = lane() % kLineLanes;
#pragma unroll 2
    for (int i = 0; i < kCopies; ++i) {
      const int line = first + i * kLinesAtOnce;
      const int page = __shfl_sync(~0u, page_, line), token = token_of(key_ + line);
      copy_line(
          i, static_cast<const T*>(args_.k.at) + line_at(args_.k, page, token) + octet * kLaneDepth,
          static_cast<const T*>(args_.v.at) + line_at(args_.v, page, token) + octet * kLaneDepth);
    }
  }

  // Lines of any length, of one cache: lanes stay at their octets.
  template <int kLong>
  struct Apart {
    static constexpr int kLineOctets = kLong / kLaneDepth;
    static constexpr int kLanes = kLineOctets < kWarpLanes ? kLineOctets : kWarpLanes;  // to a line
    static constexpr int kAtOnce = kWarpLanes / kLanes;
    static_assert(kLineOctets % kLanes == 0 && kWarpLanes % kLanes == 0);
  };

  template <int kLong>
  __device__ void copy_line_apart(char* to, int line, const T* from) const {
    const int k = key_ + line;
    const bool inside = k >= part_.sequence.lowest && k < part_.sequence.keys;
#pragma unroll
    for (int octet = 0; octet < Apart<kLong>::kLineOctets; octet += Apart<kLong>::kLanes) {
      const int at = octet + lane() % Apart<kLong>::kLanes;
      copy_octet<Through::kL2Stream>(to + SharedLines<T, kLong>::offset(line, at),
                                     from + at * kLaneDepth, inside);
    }
  }

  template <int kLong>
  __device__ void copy_apart(char* to, const mirage::Cache& cache) const {
    constexpr int kAtOnce = Apart<kLong>::kAtOnce;
    const int first = lane() / Apart<kLong>::kLanes;
    const T* const start = static_cast<const T*>(cache.at);
    if (pages_hold_units()) {
      const int page = __shfl_sync(~0u, page_, turn_);
      const T* from = start + line_at(cache, page, token_of(key_) + first);
#pragma unroll 4
      for (int i = 0; i < kKeys; i += kAtOnce) {
        copy_line_apart<kLong>(to, first + i, from);
        from += kAtOnce * cache.token;
      }
      return;
    }
#pragma unroll 1
    for (int i = first; i < kKeys; i += kAtOnce) {
      const int page = __shfl_sync(~0u, page_, i);
      copy_line_apart<kLong>(to, i, start + line_at(cache, page, token_of(key_ + i)));
    }
  }

  const AttentionArgs& args_;
  Parts<Knobs::kRows> parts_;
  Part part_{};
  char* const begin_;
  char *full_ = nullptr, *empty_ = nullptr;
  bool more_ = false;
  const int32_t* looked_up_ = nullptr;
  int unit_ = 0, key_ = 0;
  const T *key_from_ = nullptr, *value_from_ = nullptr;  // see lane_from
  int page_ = 0, turn_ = 0;  // a lane's, of unit or line `lane`; the unit that is next
};

}  // namespace mirage::tile
