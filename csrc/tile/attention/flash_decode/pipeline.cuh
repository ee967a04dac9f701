// Keys and values on their way: every warp copies its own key blocks, a few steps ahead.
//
// As in pipeline.cuh no barrier of the block is needed; one of the warp's own for each stage tells
// of a step's arrival. Copies run on across the borders of items, so memory stays busy while the
// warps of a block meet. A lane looks up the page of one key block, or of one line where key blocks
// lie in several pages, a step before the first copy that needs it.
#pragma once

#include "tile/attention/dynamic_scheduler.cuh"
#include "tile/attention/tma.cuh"
#include "tile/copy/predicated.cuh"

namespace mirage::tile {

// A stage holds a step's keys and values; of latent attention (kMore > 0) what are both, and kMore
// further elements of each key, from a cache of their own.
template <class T, int kDepth, class Knobs, int kMore = 0>
class KeyPipeline {
 public:
  static constexpr int kKeys = Knobs::kKeys, kWarps = Knobs::kWarps, kStages = Knobs::kStages;
  static_assert(kKeys == kBlockKeys, "a step is a key_block");
  static_assert((kWarps & (kWarps - 1)) == 0, "warps take turns");
  static constexpr int kSecondDepth = kMore > 0 ? kMore : kDepth;
  static constexpr int kTileBytes = KeyBlockLines<T, kDepth>::kBytes;
  static constexpr int kStageBytes = kTileBytes + KeyBlockLines<T, kSecondDepth>::kBytes;
  static constexpr int kWarpBytes = kStages * kStageBytes;
  static constexpr int kBarriersAt = kWarps * kWarpBytes;
  static constexpr int kBarrierBytes = kWarps * kStages * static_cast<int>(sizeof(Mbarrier));
  static constexpr int kDynamicAt = (kBarriersAt + kBarrierBytes + 15) / 16 * 16;
  static constexpr bool kDynamic = kDynamicOf<Knobs>;
  static constexpr int kBytes = kDynamicAt + (kDynamic ? DynamicScheduler::kBytes : 0);
  static_assert(!kDynamic || kBytes % 16 == 0, "vectors follow");
  static_assert(!kDynamic || kStages < DynamicScheduler::kLeastSteps - DynamicScheduler::kSteps,
                "nothing is claimed before the kernel before has ended");
  using Args = ArgsOf<Knobs>;
  using Range =
      std::conditional_t<kDynamic, DynamicItems<Knobs::kRows, Args>, WorkItems<Knobs::kRows, Args>>;

  // Where all multiprocessors copy and none began early, few copies ahead are better, if they are
  // large: stages of a call that promises nothing and leaves no room for another.
  static constexpr int kStepBytes = kWarps * Knobs::kBlocks * kStageBytes;  // of a multiprocessor
  static constexpr bool kCopiesMuch =
      Knobs::kRows == kLineTile && kMore == 0 && kStepBytes >= 64 * 1024;
  static constexpr int kFewStages = kCopiesMuch ? 2 : kStages;

  // `shared`: a multiple of kSwizzleAtomBytes.
  __device__ KeyPipeline(const Args& args, char* shared)
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
    if constexpr (kDynamic) dynamic_scheduler().reset();
    __syncwarp();
  }

  // A call with boxes of key blocks, if key blocks lie in one page each.
  static AttentionArgs with_boxes(AttentionArgs args) {
    args.boxed = args.page.value % kKeys == 0 &&
                 encode_key_blocks<T, kDepth>(&args.k_boxes, args, args.k) &&
                 encode_key_blocks<T, kSecondDepth>(&args.v_boxes, args, args.v);
    return args;
  }

  // The items of this block's range, or those that it claims.
  __device__ Range items(const Lengths& lengths) const {
    if constexpr (kDynamic) {
      return Range(args_, lengths, dynamic_scheduler(), DynamicScheduler::kLeastSteps * kWarps);
    } else {
      return Range(args_, lengths);
    }
  }

  // Makes a work item the first one (`more`: there is one), and looks up its pages.
  __device__ void aim(const Range& items, const WorkItem& item, bool more) {
    scheduler_ = items;
    item_ = item;
    more_ = more;
    key_block_ = first_key_block(item_);
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
    if (!more_) launch_dependents();
  }

  // Forgets what was asked for.
  __device__ void drop() {
#pragma unroll 1
    for (int stage = 0; stage < stages_; ++stage) {
      if (stage >= asked_ && (!args_.boxed || elected())) arrive(landed(stage));
      wait(landed(stage), turns_);
    }
    turns_ ^= 1;
  }

  // Prepares the copies of the first steps, so that few instructions start them, and brings what
  // the first one reads into L2: nothing is read yet, so it may still change.
  __device__ void arm() {
    if (!more_ || !args_.boxed) return;
    unrolled<kArmed>([&](int i) {
      const int page = __shfl_sync(~0u, page_, i);
      if (i >= stages_ - 1 || key_block_ + i * stride() >= item_.last) return;
      places_[i] = {token_of(key() + i * stride() * kBlockKeys), item_.head, page};
      armed_ = i + 1;
      if (!elected()) return;
      expect(landed(i), kStageBytes);
      if (i > 0) return;
      prefetch_key_block<T, kDepth>(args_.k_boxes, places_[i]);
      prefetch_key_block<T, kSecondDepth>(args_.v_boxes, places_[i]);
    });
  }

  // Asks for the first steps; those with new keys when the kernel before has ended. `steps`: the
  // first item has some for this warp. With a promise, and where all multiprocessors copy, it asks
  // for all that stages hold, not for the last of them when the first step begins: 16 sequences of
  // 1024 keys and 8 heads take 16.7 us so, 17.1 otherwise. Where clusters leave room for another
  // call, whose copies these would disturb, 0.4 us are lost.
  __device__ void fill(bool steps) {
    constexpr bool kMay = Knobs::kRows == kLineTile && kMore == 0;
    ahead_ = kMay && steps && args_.constant_history && !leaves_room(args_, Knobs::kBlocks);
    asked_ = armed_;
    if (armed_ > 0) fire();
#pragma unroll 1
    for (int stage = armed_; stage < stages_ - !ahead_; ++stage) {
      if (key() + kKeys > item_.sequence.keys - item_.sequence.tokens) grid_dependency_wait();
      asked_ += more_;
      issue(stage);
    }
    armed_ = 0;
  }

  // Key blocks of a warp lie so many apart: a cluster's blocks take turns, then their warps.
  __device__ static int stride() {
    if constexpr (!kHasClusters<kDepth>) return kWarps;
    return kWarps * cluster_size();
  }

  // The first of a work item's key blocks that is this warp's.
  __device__ static int first_key_block(const WorkItem& item) {
    if constexpr (!kHasClusters<kDepth>) return item.first + warp_index();
    return item.first + warp_index() * cluster_size() + cluster_rank();
  }

  // A stage that holds nothing until the next advance().
  __device__ char* free_stage() const { return begin() + before(full_) * kStageBytes; }

  // Waits for the next step of this warp, a key block of a work item, whose stage it becomes.
  __device__ const char* advance(const WorkItem& item, int key_block) {
    __syncwarp();  // all lanes have read the step before, whose stage is written now
    if (one_less()) wait(landed(full_), turns_);
    if (!ahead_) issue(before(full_));
    ahead_ = false;
    wait(landed(full_), turns_);
    char* const stage = begin() + full_ * kStageBytes;
    if (++full_ == stages_) {
      full_ = 0;
      turns_ ^= 1;
    }
    const int key = (item.sequence.skipped + key_block) * kBlockKeys;
    if (key < item.sequence.lowest || key + kKeys > item.sequence.keys) clear(stage, item, key);
    return stage;
  }

  // Brings the queries of a work item to come into L2.
  __device__ void prefetch_queries() const {
    constexpr int kLineElements = 128 / sizeof(T);
    constexpr int kLines = (kDepth + kLineElements - 1) / kLineElements;
    const int rows = item_.template rows<Knobs::kRows>(args_);
#pragma unroll 1
    for (int i = lane(); i < rows * kLines; i += kWarpLanes) {
      const QueryPlace at = item_.template place<Knobs::kRows>(args_, i / kLines);
      prefetch(query_line<T>(args_.q, at) + i % kLines * kLineElements);
    }
  }

 private:
  __device__ Mbarrier& landed(int stage) const {
    return reinterpret_cast<Mbarrier*>(shared_ + kBarriersAt)[warp_index() * kStages + stage];
  }
  // Whether a step is asked for when the one before it has come, not earlier. That is better for
  // clusters of two large blocks that leave room for another call's: 16 sequences of 4096 keys and
  // two heads take 19.5 us so, 20.8 otherwise. Larger clusters gain nothing, small blocks lose.
  __device__ bool one_less() const {
    constexpr bool kLarge = Knobs::kBlocks == 1 && Knobs::kRows == kLineTile && kMore == 0;
    if constexpr (!kLarge || !kHasClusters<kDepth>) return false;
    return one_less_;
  }
  __device__ char* begin() const { return shared_ + warp_index() * kWarpBytes; }
  // The first key of the key block that is next.
  __device__ int key() const { return (item_.sequence.skipped + key_block_) * kBlockKeys; }
  __device__ int before(int stage) const { return (stage == 0 ? stages_ : stage) - 1; }

  // Starts the copies of the upcoming key block, if there is one, and looks up the page of the
  // next.
  __device__ void issue(int stage) {
    if (!more_) return;
    args_.boxed ? copy_boxes(stage) : copy_lines(stage);
    key_block_ += stride();
    ++turn_;
    if constexpr (kDynamic)
      scheduler_.claim(args_, (item_.last - key_block_ + kWarps - 1) / kWarps);
    settle();
  }

  __device__ DynamicScheduler dynamic_scheduler() const {
    return DynamicScheduler(shared_ + kDynamicAt);
  }

  // Starts the copies that are prepared.
  __device__ void fire() {
    unrolled<kArmed>([&](int i) {
      if (i < armed_ && elected()) copy_boxes(i, places_[i]);
    });
    key_block_ += armed_ * stride();
    turn_ += armed_;
    settle();
  }

  // Zeros in place of lines that nobody sees: pages may hold anything there.
  __device__ void clear(char* stage, const WorkItem& item, int first) const {
    constexpr int kLineVectors = kTmaRowBytes / kVec16Bytes;
#pragma unroll 1
    for (int i = lane(); i < kStageBytes / kVec16Bytes; i += kWarpLanes) {
      const int key = first + i / kLineVectors % kKeys;
      const bool seen = key >= item.sequence.lowest && key < item.sequence.keys;
      if (!seen) *reinterpret_cast<uint4*>(stage + i * kVec16Bytes) = uint4{};
    }
    fence_proxies();
    __syncwarp();
  }

  // Goes on to the item that has a key block for this warp, and looks up pages where none are
  // known.
  __device__ void settle() {
    while (more_ && key_block_ >= item_.last) {
      more_ = scheduler_.next(item_);
      if (!more_ && tells_) launch_dependents();
      if (!more_) return;
      key_block_ = first_key_block(item_);
      turn_ = kWarpLanes;
      if (warp_index() == 0) prefetch_queries();
    }
    if (!more_) return;
    if (!args_.boxed) {
      page_ = page_of(key() + lane() % kKeys, 1);
    } else if (turn_ >= kWarpLanes) {
      turn_ = 0;
      const int key_of_lane = key() + lane() * stride() * kBlockKeys;
      token_ = token_of(key_of_lane);
      page_ = page_of(key_of_lane, kKeys);
    }
  }

  // The page of the next `keys` keys; of those that nobody sees there is none.
  __device__ int page_of(int key, int keys) {
    if (!has_pages(args_)) return item_.b;
    const bool seen = key < item_.sequence.keys && key + keys > item_.sequence.lowest;
    const unsigned place = quotient(key, args_.page);
    looked_up_ = seen ? args_.block_table + item_.b * args_.table_row + place : nullptr;
    return looked_up_ == nullptr ? 0 : bounded(*looked_up_);
  }

  __device__ int token_of(int key) const {
    return has_pages(args_) ? remainder(key, args_.page) : key;
  }

  __device__ void copy_boxes(int stage) const {
    const int page = __shfl_sync(~0u, page_, turn_), token = __shfl_sync(~0u, token_, turn_);
    if (!elected()) return;
    expect(landed(stage), kStageBytes);
    copy_boxes(stage, {token, item_.head, page});
  }
  __device__ void copy_boxes(int stage, KeyBlockPlace from) const {
    char* const to = begin() + stage * kStageBytes;
    copy_key_block<T, kDepth>(to, args_.k_boxes, from, landed(stage));
    copy_key_block<T, kSecondDepth>(to + kTileBytes, args_.v_boxes, from, landed(stage));
  }

  // Vec16 by vector, where key blocks may lie in several pages. A lane knows where a line begins:
  // the first sixteen keys, the others values.
  __device__ void copy_lines(int stage) const {
    const mirage::Cache& cache = lane() < kKeys ? args_.k : args_.v;
    const int64_t token = token_of(key() + lane() % kKeys);
    const T* const line = static_cast<const T*>(cache.at) + page_ * cache.page +
                          token * cache.token + item_.head * cache.head;
    const Sequence& sequence = item_.sequence;
    copy_known(begin() + stage * kStageBytes, line, sequence.lowest - key(), sequence.keys - key());
    arrive_with_copies(landed(stage));
  }

  // The lines that lanes know of; those before `first` and from `end` on, which nobody sees, read
  // as zero. Most calls have boxes: no place that copies has these instructions in between (a step
  // of Llama-3.1-8B: 7 us less).
  __noinline__ static __device__ void copy_known(char* to, const T* known, int first, int end) {
    copy_tile<kDepth>(to, known, 0, first, end);
    copy_tile<kSecondDepth>(to + kTileBytes, known, kKeys, first, end);
  }

  // The same of keys or values, which lanes from `from` on know of.
  template <int kLong>
  static __device__ void copy_tile(char* to, const T* known, int from, int first, int end) {
    constexpr int kVectors16 = kLong / kLaneDepth;
    // Lanes to a line, a power of two; the last of them may have nothing to copy.
    constexpr int kLanes = kVectors16 <= 8 ? 8 : kVectors16 <= 16 ? 16 : 32;
#pragma unroll 4
    for (int i = lane() / kLanes; i < kKeys; i += kWarpLanes / kLanes) {
      const auto at = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(known), from + i);
      const T* const line = reinterpret_cast<const T*>(at);
#pragma unroll
      for (int vec = lane() % kLanes; vec < kVectors16; vec += kLanes) {
        copy_16_bytes<Cache::kStream>(to + KeyBlockLines<T, kLong>::place(i, vec),
                                      line + vec * kLaneDepth, first <= i && i < end);
      }
    }
  }

  const Args& args_;
  Range scheduler_;
  WorkItem item_{};
  char* const shared_;
  const int stages_;  // of the pipeline
  const bool one_less_;
  static constexpr int kArmed = kStages > 2 ? 2 : 1;
  KeyBlockPlace places_[kArmed];
  int armed_ = 0;       // copies that are prepared
  int asked_ = 0;       // steps at the start
  int full_ = 0;        // the stage of the next step
  uint32_t turns_ = 0;  // of the pipeline, modulo two
  bool more_ = false;
  bool tells_ = false;  // the next kernel
  bool ahead_ = false;  // the next step has asked for its copies
  const int32_t* looked_up_ = nullptr;
  int key_block_ = 0;
  int page_ = 0, token_ = 0,
      turn_ = 0;  // a lane's, of key block or line `lane`; the key block that is next
};

}  // namespace mirage::tile
