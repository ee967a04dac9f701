// Keys and values on their way to the warpgroups of a block, copied by warps that do nothing else.
//
// Steps come in the order of the keys and are partitioned over the groups of warpgroups. A stage
// has a step's keys and its values, which come and go on their own: a barrier for each tells of
// their arrival, another one that their consumers are done. Half of the copying warps copy keys,
// the others values. Copies run ahead across the borders of items; what consumers have to know of a
// item comes the same way. Where caches have boxes, those of a step that is seen as a whole are
// asked for by a lane each; all others are copied line by line. (Readers that copied, too, would
// wait for their own copies: a fence for the tensor core waits for them all.)
#pragma once

#include "tile/attention/wgmma/products.cuh"
#include "tile/attention/wgmma/scheduler.cuh"

namespace mirage::tile {

// A work item as consumers see it.
struct ItemEntry {
  WorkItem item;
  ClusterShare key_blocks;  // that are its block's
  int last_block;           // that has some of its work tile
  bool more;                // whether there is such a work item
};

// Whether a kernel sums lines of its keys, which its knobs say.
MIRAGE_DEFAULT(KeySums, 0)
// Of the values' elements, for warpgroups with the same rows: 0: one.
MIRAGE_DEFAULT(Parts, 0)

template <class T, int kDepth, class Knobs, int kMore = 0>
struct WgmmaPipeline {
  static constexpr int kKeys = Knobs::kKeys, kStages = Knobs::kStages,
                       kProducers = Knobs::kProducers;
  static constexpr int kStepKeyBlocks = kKeys / kBlockKeys;
  static constexpr int kParts = kPartsOf<Knobs> > 0 ? kPartsOf<Knobs> : 1;
  static constexpr int kGroupWarpCount = kParts * Knobs::kRows / kWarpRows;  // that read a step
  static constexpr int kConsumers = Knobs::kWarps - kProducers;
  static constexpr int kGroups = kConsumers / kGroupWarpCount;
  static constexpr int kTileBytes = kKeys * kDepth * 2;
  static constexpr int kSecondDepth = kMore > 0 ? kMore : kDepth;
  static constexpr int kStageBytes = kTileBytes + kKeys * kSecondDepth * 2;  // keys, then values
  // Where both warpgroups sum a step's lines, every lane says that it is done: racecheck follows
  // no other arrival.
  static constexpr bool kAllRelease = kKeySumsOf<Knobs> > 0 && kGroups == 1;
  static constexpr int kKeyReleases = kGroupWarpCount * (kAllRelease ? kWarpLanes : 1);
  static constexpr int kEntries = 2;              // items that are known at once
  static constexpr int kShares = kProducers / 2;  // of a tile, for the warps that copy it
  static_assert(kStages > (kParts > 1 ? 1 : 2 * kGroups), "a stage to spare");
  static_assert((kParts > 1) == (kMore > 0), "latents have parts");
  static_assert(kDepth % kTmaDepth == 0 && kMore % kTmaDepth == 0, "whole boxes");

  struct State {
    Mbarrier full[2][kStages], empty[2][kStages];  // keys, values
    Mbarrier known[kEntries], done[kEntries];
    Mbarrier sums;  // tells of what the blocks of a cluster leave for this one
    ItemEntry entries[kEntries];
  };
  static constexpr int kStagesBytes = kStages * kStageBytes, kStateBytes = 512;
  static_assert(sizeof(State) <= kStateBytes, "barriers and items");

  // Which steps a consumer's warp takes.
  __device__ static int group() { return kGroups == 1 ? 0 : warp_index() / kGroupWarpCount; }
  // Row of the tile of a consumer's line i.
  __device__ static int row_of(int i) {
    return warp_index() * kWarpRows % Knobs::kRows + i * kLineTile + lane_line();
  }
  // A barrier of all consumers.
  __device__ static void sync_consumers() {
    __syncwarp();
    asm volatile("barrier.cta.sync.aligned 1, %0;" ::"n"(kConsumers * kWarpLanes) : "memory");
  }

  // One thread; a barrier of the block follows.
  __device__ static void start(State& state) {
    for (int s = 0; s < 2 * kStages; ++s) {
      init(state.full[s / kStages][s % kStages], kShares * kWarpLanes);
      init(state.empty[s / kStages][s % kStages], s < kStages ? kKeyReleases : kGroupWarpCount);
    }
    for (int e = 0; e < kEntries; ++e) {
      init(state.known[e], 1);
      init(state.done[e], kConsumers * kWarpLanes);
    }
    init(state.sums, 1);
    fence_init();
  }
};

// What the copying warps do, each with some lines of the keys, or of the values, of every step:
// lines of kDepth elements.
template <class T, int kDepth, class Knobs, class Pipeline>
class WgmmaProducer {
 public:
  static constexpr int kKeys = Pipeline::kKeys, kStages = Pipeline::kStages;

  __device__ WgmmaProducer(const AttentionArgs& args, char* stages, typename Pipeline::State& state)
      : args_(args),
        cache_(side() == 0 ? args.k : args.v),
        map_(side() == 0 ? args.k_boxes : args.v_boxes),
        stages_(stages + side() * Pipeline::kTileBytes),
        full_(state.full[side()]),
        empty_(state.empty[side()]),
        state_(state),
        boxes_(args) {
    if (args.boxed && share() == 0 && lane() == 0) prefetch(map_);
  }

  // All items of the block. What is known without reading, or promised to stay as it is, needs not
  // wait for the kernel before.
  __device__ void run() {
    const bool reads = args_.seq_lens != nullptr || args_.first_tokens != nullptr;
    if (reads && !args_.constant_history) wait_once();
    WgmmaItems<Knobs::kRows> items(args_);
    WorkItem item{};
    for (int number = 0;; ++number) {
      const bool more = items.next(item);
      const int e = number % Pipeline::kEntries;
      if (number >= Pipeline::kEntries) wait(state_.done[e], number / Pipeline::kEntries % 2 ^ 1);
      // Without pages boxes may begin anywhere.
      const bool rounds = args_.boxed && args_.block_table != nullptr;
      const ClusterShare key_blocks =
          more ? items.share(item, rounds ? Pipeline::kStepKeyBlocks : 1) : ClusterShare{};
      if (producer() == 0 && lane() == 0) {
        state_.entries[e].more = more;
        if (more) {
          state_.entries[e].item = item;
          state_.entries[e].key_blocks = key_blocks;
          state_.entries[e].last_block = items.last_block(item);
        }
        arrive(state_.known[e]);
      }
      if (!more) break;
      // With the consumers, who say that the cluster may leave its sums: compute-sanitizer lets
      // nobody past who has come before all have, or are gone.
      __syncwarp();
      if (cluster_size() > 1) arrive_cluster();
      copy(item, key_blocks);
      if (cluster_size() > 1) wait_cluster();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }

 private:
  static constexpr int kVectors16 = kDepth / kLaneDepth;
  static constexpr int kLineLanes = kVectors16 < kWarpLanes ? kVectors16 : kWarpLanes;
  static constexpr int kLinesAtOnce = kWarpLanes / kLineLanes;
  static constexpr int kLines = kKeys / Pipeline::kShares;  // of a step, this warp's
  static constexpr int kRounds = kLines / kLinesAtOnce;
  static_assert(kRounds * kLinesAtOnce * Pipeline::kShares == kKeys, "whole rounds");

  __device__ static int producer() { return warp_index() - Pipeline::kConsumers; }
  __device__ static int side() { return producer() % 2; }  // keys, values
  __device__ static int share() { return producer() / 2; }

  // Whether the caller promised that the keys up to this one are not being written.
  __device__ bool is_history(const WorkItem& item, int through) const {
    return args_.constant_history && through <= item.sequence.keys - args_.q_len;
  }
  __device__ void wait_once() {
    grid_dependency_wait();
    waited_ = true;
  }

  __device__ void copy(const WorkItem& item, ClusterShare key_blocks) {
    const int skipped = item.sequence.skipped;
    lowest_ = item.sequence.lowest;
    end_ = min(item.sequence.keys, (skipped + key_blocks.last) * kBlockKeys);
    lines_ = static_cast<const T*>(cache_.at) + item.head * cache_.head +
             lane() % kLineLanes * kLaneDepth;
    const bool dense = args_.block_table == nullptr;
    if (dense) lines_ += item.b * cache_.page;
    const int begin = (skipped + key_blocks.first) * kBlockKeys;
    const int last = (skipped + key_blocks.last) * kBlockKeys;
    for (int key = begin; key < last; key += kKeys) {
      if (!waited_ && !is_history(item, key + kKeys)) wait_once();
      if (key == begin) look_up(key, item.b);
      if (reused_) wait(empty_[at_stage_], turn_ ^ 1);
      if (args_.boxed && key >= lowest_ && key + kKeys <= end_ && boxes_.may_begin(args_, key)) {
        copy_boxes(key, item);
      } else {
        const int first = key + share() * kLines;
        dense ? copy_dense(first) : copy_pages(first, item.b);
        arrive_after_lines();
      }
      look_up(key + kKeys, item.b);
      if (++at_stage_ == kStages) {
        at_stage_ = 0;
        turn_ ^= 1;
        reused_ = true;
      }
    }
  }

  // Of many small boxes every warp asks for some, as one takes long to.
  __device__ int own_box() const {
    if (boxes_.tokens() < kKeys) return lane() * Pipeline::kShares + share();
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
  __device__ void copy_boxes(int key, const WorkItem& item) const {
    if (share() == 0 && lane() == 0) {
      await_bytes(full_[at_stage_], kKeys * kDepth * 2);
      arrive_for(full_[at_stage_], Pipeline::kShares * kWarpLanes);
    }
    __syncwarp();
    const int box = own_box();
    if (!boxes_.has(box)) return;
    int token = key + boxes_.token(box);
    if (args_.block_table != nullptr) token = remainder(token, args_.page);
    const KeyBlockPlace from{token, item.head, page_};
    copy_tile(stages_ + at_stage_ * Pipeline::kStageBytes + boxes_.place(box), map_,
              boxes_.depth(box), from, full_[at_stage_]);
  }
  // In a call with boxes consumers do not make lines seen to the tensor cores, so it is done here.
  __device__ void arrive_after_lines() const {
    if (!args_.boxed) {
      arrive_with_copies(full_[at_stage_]);
      return;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_proxies();
    arrive(full_[at_stage_]);
  }

  // Round i of a step: a lane's vector, or its vectors of a line that has more than lanes.
  __device__ void copy_own(int i, int key, const T* from) const {
    const int line = share() * kLines + i * kLinesAtOnce + lane() / kLineLanes;
    unrolled<kVectors16 / kLineLanes>([&](int v) {
      const int vec = lane() % kLineLanes + v * kLineLanes;
      char* const to = stages_ + at_stage_ * Pipeline::kStageBytes +
                       vec / 8 * (kKeys * kTmaRowBytes) + swizzled_offset(line, vec % 8);
      copy_16_bytes<Cache::kStream>(to, from + v * kLineLanes * kLaneDepth,
                                    key >= lowest_ && key < end_);
    });
  }

  __device__ void copy_dense(int first) const {
    const int key = first + lane() / kLineLanes;
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
    unrolled<kLines / kKnown>([&](int n) {
      const int key = first + n * kKnown + lane();
      const int place = quotient(key, args_.page);
      int page = 0;
      if (key >= lowest_ && key < end_) page = args_.block_table[b * args_.table_row + place];
      const int token = key - place * args_.page_size;
      at[n] = page * cache_.page + token * cache_.token;
    });
    unrolled<kLines / kKnown>([&](int n) {
#pragma unroll 4
      for (int i = 0; i < kKnown / kLinesAtOnce; ++i) {
        const int line = i * kLinesAtOnce + lane() / kLineLanes;
        const int64_t own = __shfl_sync(~0u, at[n], line);
        copy_own(n * (kKnown / kLinesAtOnce) + i, first + n * kKnown + line, lines_ + own);
      }
    });
  }

  const AttentionArgs& args_;
  const mirage::Cache& cache_;
  const CUtensorMap& map_;
  char* const stages_;  // the first one's tile
  Mbarrier *const full_, *const empty_;
  typename Pipeline::State& state_;
  const StepBoxes<kKeys, kDepth> boxes_;
  int at_stage_ = 0, lowest_ = 0, end_ = 0, page_ = 0;
  uint32_t turn_ = 0;
  bool reused_ = false, waited_ = false;
  const T* lines_ = nullptr;
};

// A group's place in the pipeline.
template <class Pipeline>
class WgmmaConsumer {
 public:
  __device__ WgmmaConsumer(char* stages, typename Pipeline::State& state, bool boxed)
      : stages_(stages), state_(state), boxed_(boxed) {}

  // The next item; its first step for this group is the group's in the order of all steps.
  __device__ const ItemEntry& next_item() {
    if (number_ >= 0) arrive(state_.done[number_ % Pipeline::kEntries]);
    ++number_;
    const int e = number_ % Pipeline::kEntries;
    wait(state_.known[e], number_ / Pipeline::kEntries % 2);
    const ItemEntry& entry = state_.entries[e];
    step_ = before_ + Pipeline::group() - Pipeline::kGroups;
    if (entry.more) {
      before_ += (entry.key_blocks.last - entry.key_blocks.first + Pipeline::kStepKeyBlocks - 1) /
                 Pipeline::kStepKeyBlocks;
    }
    return entry;
  }

  // Waits for the next step's keys and returns their stage.
  __device__ int advance() {
    step_ += Pipeline::kGroups;
    const unsigned turn = static_cast<unsigned>(step_) / Pipeline::kStages;
    const int stage = step_ - turn * Pipeline::kStages;
    turn_ = turn % 2;
    arrived(state_.full[0][stage], turn_);
    return stage;
  }
  // How often the pipeline went round before that stage, modulo two.
  __device__ unsigned turn() const { return turn_; }
  __device__ void wait_for_values(int stage, unsigned turn) const {
    arrived(state_.full[1][stage], turn);
  }
  __device__ const char* at(int stage) const { return stages_ + stage * Pipeline::kStageBytes; }

  // Nothing of a stage's keys, or of its values, is needed any more.
  __device__ void release_keys(int stage) const {
    Pipeline::kAllRelease ? arrive(state_.empty[0][stage]) : release(state_.empty[0][stage]);
  }
  __device__ void release_values(int stage) const { release(state_.empty[1][stage]); }

 private:
  __device__ void arrived(Mbarrier& full, unsigned turn) const {
    wait(full, turn);
    if (!boxed_) fence_proxies();
  }
  __device__ static void release(Mbarrier& empty) {
    __syncwarp();
    if (lane() == 0) arrive(empty);
  }

  char* const stages_;
  typename Pipeline::State& state_;
  const bool boxed_;
  int number_ = -1, before_ = 0, step_ = 0;
  unsigned turn_ = 0;
};

}  // namespace mirage::tile
