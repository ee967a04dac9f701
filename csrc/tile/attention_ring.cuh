// Keys and values on their way: every warp copies its own units, kStages - 1 steps ahead.
//
// As in pipeline.cuh no barrier of the block is needed. Copies run on across the borders of parts,
// so memory stays busy while the warps of a block meet. Pages are looked up one step before a copy.
#pragma once

#include "tile/attention_parts.cuh"
#include "tile/attention_sums.cuh"
#include "tile/edges.cuh"
#include "tile/pipeline.cuh"

namespace mirage::tile {

template <class T, int kDepth, class Knobs>
class KeyRing {
 public:
  static constexpr int kKeys = Knobs::kKeys, kWarps = Knobs::kWarps, kStages = Knobs::kStages;
  static_assert(kKeys == kUnitKeys, "a step is a unit");
  using Line = SharedLines<T, kDepth>;
  static constexpr int kTileBytes = kKeys * Line::kPitch;
  static constexpr int kSlotBytes = 2 * kTileBytes;  // keys, then values
  static constexpr int kWarpBytes = kStages * kSlotBytes;
  static constexpr int kBytes = kWarps * kWarpBytes;

  __device__ KeyRing(const AttentionArgs& args, char* shared)
      : args_(args),
        begin_(shared + warp_index() * kWarpBytes),
        page_size_(args.block_table == nullptr ? kKeys : args.page_size) {}

  // Begins with a part and goes on with those after it; `more`: whether there is one.
  __device__ void start(const Parts<Knobs::kRows>& parts, const Part& part, bool more) {
    parts_ = parts;
    part_ = part;
    more_ = more;
    unit_ = first_unit(part_);
    settle();
    empty_ = begin_;
#pragma unroll 1
    for (int s = 0; s < kStages - 1; ++s) issue();
    full_ = begin_ + (kStages - 1) * kSlotBytes;  // `advance` goes on from here
  }

  // The first of a part's units that is this warp's.
  __device__ static int first_unit(const Part& part) {
    const unsigned turn = static_cast<unsigned>(part.position) % kWarps;
    return part.first + (warp_index() + kWarps - turn) % kWarps;
  }

  // Waits for the next step of this warp, whose slot it becomes.
  __device__ const char* advance() {
    __syncwarp();  // all lanes have read the step before, whose slot is written now
    issue();
    wait_copies<kStages - 1>();
    __syncwarp();  // the other lanes' copies have landed, too
    full_ = full_ + kSlotBytes == begin_ + kWarpBytes ? begin_ : full_ + kSlotBytes;
    return full_;
  }

 private:
  static constexpr int kOctets = kDepth / kLaneDepth;
  // Lanes to a line, a power of two; the last of them may have nothing to copy.
  static constexpr int kLineLanes = kOctets <= 8 ? 8 : kOctets <= 16 ? 16 : 32;
  static constexpr int kLinesAtOnce = kWarpLanes / kLineLanes;
  static constexpr int kCopies = kKeys / kLinesAtOnce;

  // Starts the copies of the upcoming unit, if there is one, and looks up the page of the next.
  __device__ void issue() {
    if (more_) {
      page_size_ % kKeys == 0 ? copy_within_page() : copy_by_lines();
      unit_ += kWarps;
      settle();
    }
    commit_copies();
    empty_ = empty_ + kSlotBytes == begin_ + kWarpBytes ? begin_ : empty_ + kSlotBytes;
  }

  // Goes on to the part that has a unit for this warp, and asks for the page where the unit begins.
  __device__ void settle() {
    while (more_ && unit_ >= part_.last) {
      more_ = parts_.next(part_);
      if (!more_) return;
      unit_ = first_unit(part_);
      if (warp_index() == 0) prefetch_queries();
    }
    if (!more_) return;
    key_ = (part_.sequence.skipped + unit_) * kUnitKeys;
    page_ = page_of(key_);
  }

  // Brings the queries of a part to come into L2.
  __device__ void prefetch_queries() const {
    constexpr int kLineElements = 128 / sizeof(T);
    constexpr int kLines = (kDepth + kLineElements - 1) / kLineElements;
    const int rows = part_.template rows<Knobs::kRows>(args_);
    for (int i = lane(); i < rows * kLines; i += kWarpLanes) {
      const QueryPlace at = part_.template place<Knobs::kRows>(args_, i / kLines);
      prefetch(static_cast<const T*>(args_.q.at) + at.token * args_.q.token +
               at.head * args_.q.head + i % kLines * kLineElements);
    }
  }

  // The page of a key; one that nobody sees has none.
  __device__ int page_of(int key) const {
    if (args_.block_table == nullptr) return part_.b;
    const bool seen = key < part_.sequence.keys && key + kKeys > part_.sequence.lowest;
    const unsigned place = static_cast<unsigned>(key) / page_size_;
    return seen ? args_.block_table[part_.b * args_.table_row + place] : 0;
  }

  __device__ int token_of(int key) const {
    return args_.block_table == nullptr ? key : static_cast<unsigned>(key) % page_size_;
  }

  __device__ int64_t line_at(const mirage::Cache& cache, int page, int token) const {
    return page * cache.page + token * cache.token + part_.head * cache.head;
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
    const int token = token_of(key_) + lane() / kLineLanes, octet = lane() % kLineLanes;
    const T* key =
        static_cast<const T*>(args_.k.at) + line_at(args_.k, page_, token) + octet * kLaneDepth;
    const T* value =
        static_cast<const T*>(args_.v.at) + line_at(args_.v, page_, token) + octet * kLaneDepth;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_line(i, key, value);
      key += kLinesAtOnce * args_.k.token;
      value += kLinesAtOnce * args_.v.token;
    }
  }

  // Where a unit may lie in several pages.
  __device__ void copy_by_lines() const {
    const int first = key_ + lane() / kLineLanes, octet = lane() % kLineLanes;
#pragma unroll 2
    for (int i = 0; i < kCopies; ++i) {
      const int at = first + i * kLinesAtOnce;
      const int page = page_of(at), token = token_of(at);
      copy_line(
          i, static_cast<const T*>(args_.k.at) + line_at(args_.k, page, token) + octet * kLaneDepth,
          static_cast<const T*>(args_.v.at) + line_at(args_.v, page, token) + octet * kLaneDepth);
    }
  }

  const AttentionArgs& args_;
  Parts<Knobs::kRows> parts_;
  Part part_{};
  char* const begin_;
  char *full_ = nullptr, *empty_ = nullptr;
  bool more_ = false;
  int unit_ = 0, key_ = 0, page_ = 0;
  const unsigned page_size_;
};

}  // namespace mirage::tile
