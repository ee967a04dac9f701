// Attention over latents by wgmma: what one block does, as emitted kernels ask for it.
//
// All heads share a sequence's lines, which are keys and values alike, so heads are the query rows,
// and a line is copied once for 64 of them. Their sums are too many for the registers of a
// warpgroup: two have the same rows. Each computes the weights of half of a step's keys and sums
// half of the values' elements, for which they exchange weights. Stages, queries and barriers take
// the shared memory; what blocks leave goes through the workspace to a second kernel.
#pragma once

#include "tile/attention/launch_heuristic.cuh"
#include "tile/attention/lazy_tiles.cuh"
#include "tile/attention/wgmma/latent_combine.cuh"
#include "tile/attention/wgmma/scores.cuh"

namespace mirage::tile {

// What the two warps of different warpgroups that have the same rows tell each other.
template <class T, int kOwn>
class WarpPair {
 public:
  using Weights = PackedScores<T, kWarpRows, kOwn>;
  static constexpr bool kSetsFirst = false;
  static constexpr int kVectors16 = sizeof(Weights) / kVec16Bytes;  // of a lane
  static constexpr int kWarpBytes = (kVectors16 * kWarpLanes + kWarpRows / 4) * kVec16Bytes;

  __device__ explicit WarpPair(char* rooms)
      : own_(rooms + warp_index() * kWarpBytes),
        other_(rooms + (warp_index() ^ kGroupWarps) * kWarpBytes) {}

  // Behind it, what both have written before is there.
  __device__ void sync() const {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id()), "n"(2 * kWarpLanes) : "memory");
  }
  __device__ bool any(bool mine) const {
    int found;
    asm volatile(
        "{ .reg .pred mine, any;\n"
        "setp.ne.s32 mine, %1, 0;\n"
        "barrier.cta.red.or.aligned.pred any, %2, %3, mine;\n"
        "selp.s32 %0, 1, 0, any; }"
        : "=r"(found)
        : "r"(static_cast<int>(mine)), "r"(id()), "n"(2 * kWarpLanes)
        : "memory");
    return found != 0;
  }

  // The larger of what the lanes of a line have in both warps.
  __device__ void share(float (&most)[2]) const {
    exchange(most, [](float& mine, float other) { mine = fmaxf(mine, other); });
  }
  // The sum of both.
  __device__ void add(float (&sums)[2]) const {
    exchange(sums, [](float& mine, float other) { mine += other; });
  }

  __device__ Weights other(const Weights& mine) const {
    auto* const to = reinterpret_cast<uint4*>(own_) + lane();
    const auto* const from = reinterpret_cast<const uint4*>(other_) + lane();
    Weights found;
    unrolled<kVectors16>(
        [&](int v) { to[v * kWarpLanes] = reinterpret_cast<const uint4*>(&mine)[v]; });
    sync();
    unrolled<kVectors16>(
        [&](int v) { reinterpret_cast<uint4*>(&found)[v] = from[v * kWarpLanes]; });
    return found;
  }

 private:
  static constexpr int kNumbersAt = kVectors16 * kWarpLanes * kVec16Bytes;
  static constexpr int kFirstBarrier = 8;

  __device__ static int id() { return kFirstBarrier + warp_index() % kGroupWarps; }
  template <class Take>
  __device__ void exchange(float (&numbers)[2], Take take) const {
    float* const to = reinterpret_cast<float*>(own_ + kNumbersAt) + lane_line();
    const float* const from = reinterpret_cast<const float*>(other_ + kNumbersAt) + lane_line();
    if (lane_quarter() == 0) to[0] = numbers[0], to[kLineTile] = numbers[1];
    sync();
    take(numbers[0], from[0]);
    take(numbers[1], from[kLineTile]);
  }

  char *const own_, *const other_;
};

// Of a work item's queries, what goes along one dim.
template <int kDepth>
struct QueryLines {
  const mirage::Lines* of;
};

template <class T, int kDepth_, class Knobs, int kMore>
class WgmmaLatents {
 public:
  using Element = T;
  static constexpr int kDepth = kDepth_, kRows = Knobs::kRows, kKeys = Knobs::kKeys;
  static constexpr int kWarps = Knobs::kWarps, kThreads = kWarps * kWarpLanes;
  static constexpr int kBlocks = Knobs::kBlocks;
  using Pipeline = WgmmaPipeline<T, kDepth, Knobs, kMore>;
  using End = LatentEnd<T, kDepth, Pipeline, kRows>;
  using Space = typename End::Space;
  using Maxima = typename End::Maxima;
  using Sums = WgmmaSums;
  using Product = typename End::Product;
  static constexpr int kGroups = Pipeline::kGroups;
  static constexpr int kOwnKeys = kKeys / Pipeline::kParts;  // of a step, whose weights a warp has
  using Pair = WarpPair<T, kOwnKeys>;
  static_assert(kGroups == 1 && kRows == kGroupRows, "both warpgroups have all rows");

  static constexpr int kRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = 88;
  static constexpr int kConsumerRegisters = (3 * kRegisters - kProducerRegisters) / 2 / 8 * 8;
  static constexpr int kQueriesAt = Pipeline::kStagesBytes;
  static constexpr int kMoreQueriesAt = kQueriesAt + kRows * kDepth * 2;
  static constexpr int kStateAt = kMoreQueriesAt + kRows * kMore * 2;
  static constexpr int kRoomsAt = kStateAt + Pipeline::kStateBytes;
  static constexpr int kBytes = kRoomsAt + Pipeline::kConsumers * Pair::kWarpBytes;

  __device__ WgmmaLatents(const AttentionArgs& args, char* shared)
      : args_(args),
        shared_(shared),
        consumer_(shared, state(), args.boxed),
        pair_(shared + kRoomsAt) {
    if (threadIdx.x == 0) Pipeline::start(state());
    __syncthreads();
    if (warp_index() >= Pipeline::kConsumers) {
      shrink_registers<kProducerRegisters>();
      if (warp_index() % 2 == 0) {
        WgmmaProducer<T, kDepth, Knobs, Pipeline>(args, shared, state()).run();
      } else {
        WgmmaProducer<T, kMore, Knobs, Pipeline>(args, shared, state()).run();
      }
      asm volatile("exit;");
    }
    grow_registers<kConsumerRegisters>();
  }

  // The next item of the block's range; none for the warps that have copied.
  __device__ bool next_item() {
    entry_ = &consumer_.next_item();
    if (entry_->more) begin_item();
    if (!waited_) {
      grid_dependency_wait();
      launch_dependents();
      waited_ = true;
    }
    return entry_->more;
  }

  // Waits for the keys of the next step.
  __device__ bool next_step() {
    key_block_ += Pipeline::kStepKeyBlocks;
    if (key_block_ >= last_) return false;
    before_ = stage_;
    stage_ = consumer_.advance();
    consumer_.wait_for_values(stage_, consumer_.turn());
    return true;
  }

  __device__ int seq_len() const { return item_->sequence.keys; }
  __device__ QueryLines<kDepth> queries() const { return {&args_.q}; }
  __device__ QueryLines<kMore> more_queries() const { return {&args_.more_q}; }

  // Keeps the operands of all scores of the item.
  __device__ void hold_resident(QueryLines<kDepth> lines) {
    copy_queries<kDepth>(*lines.of, shared_ + kQueriesAt);
  }
  __device__ void hold_more_resident(QueryLines<kMore> lines) {
    copy_queries<kMore>(*lines.of, shared_ + kMoreQueriesAt);
    fence_proxies();
    Pipeline::sync_consumers();
  }

  // From the warpgroup's own on.
  __device__ WgmmaKeys<T, kKeys, kDepth> keys() const {
    return {consumer_.at(stage_) + End::part() * kOwnBytes, nullptr};
  }
  __device__ WgmmaKeys<T, kKeys, kMore> more_keys() const {
    return {consumer_.at(stage_) + Pipeline::kTileBytes + End::part() * kOwnBytes, nullptr};
  }

  // The products of the warpgroup's keys, with all that queries have.
  __device__ const Scores<float, kWarpRows, kOwnKeys>& scores(WgmmaKeys<T, kKeys, kDepth> keys) {
    begin_products();
    ask_for_scores<kRows, false>(scores_, shared_ + kMoreQueriesAt, more_keys());
    commit_products();
    if (!is_first_) {  // what was multiplied before is needed no more, the sooner the better
      wait_products<1>();
      consumer_.release_keys(before_);
    }
    begin_products();
    ask_for_scores<kRows, true>(scores_, shared_ + kQueriesAt, keys);
    commit_products();
    wait_products();
    consumer_.release_values(stage_);
    is_first_ = false;
    return scores_;
  }
  __device__ AddedScores more_scores(WgmmaKeys<T, kKeys, kMore>) const { return {}; }

  // The online-softmax step, as in WgmmaAttention.
  template <class S, class Mask>
  __device__ void online_softmax(const S& scores, const Mask& mask, Maxima& maximum, Sums&,
                                 Product& product) {
    const auto own = softmax_weights<T>(scores, mask, maximum, product, pair_);
    const auto other = pair_.other(own);
    begin_products();
    add_values(product, values(End::part()), own);
    add_values(product, values(1 - End::part()), other);
    commit_products();
  }

  __device__ StepPositions<kOwnKeys> key_positions() const {
    const int first = first_key_ + key_block_ * kBlockKeys + End::part() * kOwnKeys;
    return {first, first_key_ + last_ * kBlockKeys, behind_};
  }

  // Leaves the item's sums, or finishes its work tile, if that is all this block's.
  template <class After>
  __device__ void combine(Maxima& maximum, const Sums&, Product& product) {
    wait_products();
    if (!is_first_) consumer_.release_keys(stage_);
    is_first_ = true;
    product.total_sums();
    float sums[2] = {product.sums()[0], product.sums()[2]};
    pair_.add(sums);
    product.sums()[0] = sums[0];
    product.sums()[2] = sums[1];
    End(args_, *entry_).template finish<After>(maximum, product);
    Pipeline::sync_consumers();  // the queries have been read
  }

 private:
  static constexpr int kOwnBytes = kOwnKeys * kTmaRowBytes;  // of a box

  // The warpgroup's elements of the values of a warpgroup's keys.
  __device__ WgmmaValues<T, kKeys, Product::kDepth, false> values(int of) const {
    constexpr int kPartBytes = Product::kDepth / kTmaDepth * kKeys * kTmaRowBytes;
    return {consumer_.at(stage_) + End::part() * kPartBytes + of * kOwnBytes};
  }

  __device__ void begin_item() {
    item_ = &entry_->item;
    key_block_ = entry_->key_blocks.first - Pipeline::kStepKeyBlocks;
    last_ = entry_->key_blocks.last;
    first_key_ = item_->sequence.skipped * kBlockKeys;
    const int keys = item_->sequence.keys;
    behind_ = first_key_ + last_ * kBlockKeys < keys ? keys : 0;
  }

  // Lines of the item's rows, and zeros for rows past its last, where the tensor cores read them.
  template <int kLine>
  __device__ void copy_queries(const mirage::Lines& lines, char* to) const {
    constexpr int kVectors16 = kLine / kLaneDepth;
    constexpr int kEach = kRows * kVectors16 / (Pipeline::kConsumers * kWarpLanes);
    const int rows = item_->template rows<kRows>(args_), vec = threadIdx.x % kVectors16;
    Vec16<T> found[kEach];
    unrolled<kEach>([&](int i) {
      const int row = row_of<kVectors16>(i);
      const auto at = item_->template place<kRows>(args_, min(row, rows - 1));
      const auto* line = reinterpret_cast<const Vec16<T>*>(query_line<T>(lines, at));
      found[i] = read_global(row < rows ? line : nullptr, vec);
    });
    unrolled<kEach>([&](int i) {
      const int at =
          vec / 8 * (kRows * kTmaRowBytes) + swizzled_offset(row_of<kVectors16>(i), vec % 8);
      *reinterpret_cast<Vec16<T>*>(to + at) = found[i];
    });
  }
  template <int kVectors16>
  __device__ static int row_of(int i) {
    return threadIdx.x / kVectors16 + i * (Pipeline::kConsumers * kWarpLanes / kVectors16);
  }

  __device__ typename Pipeline::State& state() const {
    return *reinterpret_cast<typename Pipeline::State*>(shared_ + kStateAt);
  }

  const AttentionArgs& args_;
  char* const shared_;
  WgmmaConsumer<Pipeline> consumer_;
  const Pair pair_;
  const ItemEntry* entry_ = nullptr;
  const WorkItem* item_ = nullptr;
  int key_block_ = 0, last_ = 0;
  int first_key_ = 0, behind_ = 0;  // of the item; added to positions that are another item's
  int stage_ = 0, before_ = 0;      // of this step, and the one before
  bool waited_ = false;             // for the kernel before
  bool is_first_ = true;            // step of its item
  Scores<float, kWarpRows, kOwnKeys> scores_;
};

// Blocks, each with an equal range of all key blocks. If there are few work tiles, and sequences
// are equally long, these lie in as many blocks each: up to where another block costs the second
// kernel more than it takes from the steps of the others (a step takes as long as sixteen parts).
constexpr int kMorePerPart = 16;
template <class Work>
int latent_blocks(const AttentionArgs& args) {
  const int64_t work_tiles = sequence_work_tiles<Work::kRows>(args) * args.B;
  const int64_t most = args.multiprocessors;
  if (work_tiles == 0) return 0;
  const int64_t steps = ceil_div(larger(args.max_len, 1), Work::kKeys);  // of a work tile
  if (work_tiles < most) {
    int64_t parts = 1;
    while (parts < most / work_tiles && parts < steps && parts * parts < kMorePerPart * steps)
      ++parts;
    if (parts < most / work_tiles || 10 * parts * work_tiles >= 9 * most)
      return static_cast<int>(parts * work_tiles);
    return static_cast<int>(most);
  }
  const int64_t even = ceil_div(work_tiles, ceil_div(work_tiles, most));
  return static_cast<int>(10 * even >= 9 * most ? even : most);
}

template <class Work>
int64_t latent_workspace(const AttentionArgs& args) {
  return typename Work::Space(with_divisors<Work::kRows>(args), Work::kRows)
      .bytes(latent_blocks<Work>(args));
}

}  // namespace mirage::tile
