// Attention of many query rows: what one block does, as emitted kernels ask for it.
//
// Two warpgroups multiply, a third one copies. Scores of the next step are asked for before the
// values' products of this one, which go on while the next weights are computed.
#pragma once

#include "tile/attention/lazy_tiles.cuh"
#include "tile/attention/wgmma/combine.cuh"
#include "tile/attention/wgmma/keys.cuh"

namespace mirage::tile {

constexpr int least(int a, int b) { return a < b ? a : b; }

template <class T, int kDepth_, class Knobs>
class WgmmaAttention {
 public:
  using Element = T;
  static constexpr int kDepth = kDepth_, kRows = Knobs::kRows, kKeys = Knobs::kKeys,
                       kStages = Knobs::kStages;
  static constexpr int kWarps = Knobs::kWarps, kThreads = kWarps * kWarpLanes;
  static constexpr int kBlocks = Knobs::kBlocks;
  using Pipeline = WgmmaPipeline<T, kDepth, Knobs>;
  using Space = WgmmaSpace<kRows, kDepth>;  // of a block in the workspace
  using End = WgmmaCombine<T, kDepth, Knobs>;
  using Queries = RowFrag<T, kWarpRows, kDepth>;
  using Maxima = WgmmaMaxima<kDepth>;
  using Sums = WgmmaSums;
  using Product = WgmmaProduct<kDepth>;
  // Where something is computed of the keys, scores are waited for after that.
  static constexpr bool kWaitsLate = kKeySumsOf<Knobs> > 0;

  static constexpr int kGroups =
      Pipeline::kGroups;  // of warpgroups that each take some of the keys
  static constexpr int kConsumers = Pipeline::kConsumers * kWarpLanes;  // threads
  // A whole warpgroup that copies leaves registers to the others.
  static constexpr int kWarpgroups = kWarps / kGroupWarps;
  static constexpr bool kMovesRegisters = Knobs::kProducers == kGroupWarps && kBlocks == 1;
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kDepth > 64 ? 120 : 88;
  static constexpr int kConsumerRegisters =
      least((kRegisters * kWarpgroups - kProducerRegisters) / (kWarpgroups - 1) / 8 * 8, 240);
  static constexpr int kQueriesAt = Pipeline::kStagesBytes;
  static constexpr int kStateAt = kQueriesAt + kRows * kDepth * 2;
  static constexpr int kLeftAt = kStateAt + Pipeline::kStateBytes;
  static constexpr int kRoomAt = kLeftAt + End::kBytes;
  static constexpr int kRooms = 2 * WgmmaLines<float, kKeys>::kRoom;  // floats, of a warpgroup
  static constexpr int kBytes = kRoomAt + Pipeline::kConsumers / kGroupWarps * kRooms * 4;

  __device__ WgmmaAttention(const AttentionArgs& args, char* shared)
      : args_(args),
        shared_(shared),
        consumer_(shared, state(), args.boxed),
        rooms_{reinterpret_cast<float*>(shared + kRoomAt) + warp_index() / kGroupWarps * kRooms,
               0} {
    if (threadIdx.x == 0) {
      Pipeline::start(state());
      expect(state().sums, End::sent_bytes());
    }
    __syncthreads();
    if (warp_index() >= Pipeline::kConsumers) {
      if constexpr (kMovesRegisters) shrink_registers<kProducerRegisters>();
      WgmmaProducer<T, kDepth, Knobs, Pipeline>(args, shared, state()).run();
      asm volatile("exit;");
    }
    if constexpr (kMovesRegisters) grow_registers<kConsumerRegisters>();
    if (warp_index() >= kGroupWarps) pass_turn();
    if (cluster_size() > 1) prefetch_work_tile<T, kDepth, kRows>(args, kStages * kKeys, kConsumers);
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

  __device__ bool next_step() {
    key_block_ += kGroups * Pipeline::kStepKeyBlocks;
    if (!kWaitsLate || key_block_ >= last_) pass_turn_once();
    if (key_block_ >= last_) return false;
    before_ = stage_;
    stage_ = ahead_;
    turn_ = consumer_.turn();
    if (!kWaitsLate) consumer_.release_keys(stage_);  // their scores are there
    return true;
  }

  __device__ int seq_len() const { return item_->sequence.keys; }
  __device__ int token_count() const { return item_->sequence.tokens; }

  __device__ KeyVector<int, kWarpRows> row_tokens() const {
    KeyVector<int, kWarpRows> tokens;
    unrolled<2>([&](int i) {
      tokens.at[0][i] = quotient(item_->tile * kRows + Pipeline::row_of(i), args_.group);
    });
    return tokens;
  }

  // The queries of this warp's rows; zeros in place of rows past the last.
  __device__ Queries queries() const {
    return filled<Queries>([&](int i, int c) {
      const Vec16<T>* const line = Pipeline::row_of(i) < rows_ ? query_lines_[i] : nullptr;
      return read_global(line, c * kChunkVectors + lane_quarter());
    });
  }
  __device__ Queries partitioned_queries() const { return queries(); }

  // An input of dims [D], or the item's line of one by heads of the cache; zeros if it is absent.
  __device__ DepthFrag<T, kDepth> vector(int index) const {
    const auto* const line = vector_line<T>(args_, index, item_->head);
    return filled<DepthFrag<T, kDepth>>(
        [&](int, int c) { return read_global(line, c * kChunkVectors + lane_quarter()); });
  }

  __device__ DepthFrag<T, kDepth> partitioned_vector(int index) const { return vector(index); }

  // Keeps the operand of all scores of the item, and asks for the first.
  __device__ void hold_resident(const Queries& rows) {
    unrolled<2, kDepth / kChunkDepth>([&](int i, int c) {
      const int vec = c * kChunkVectors + lane_quarter();
      const int at =
          vec / 8 * (kRows * kTmaRowBytes) + swizzled_offset(Pipeline::row_of(i), vec % 8);
      if (Pipeline::group() == 0)
        *reinterpret_cast<Vec16<T>*>(shared_ + kQueriesAt + at) = rows.at[i][c];
    });
    fence_proxies();
    Pipeline::sync_consumers();
    __syncwarp();
    if (cluster_size() > 1) arrive_cluster();  // others may leave their sums here
    find_ahead();
    ask_for_scores();
    wait_products();
  }

  __device__ WgmmaKeys<T, kKeys, kDepth> keys() const { return keys_in(stage_); }

  // The step's products; they were computed a step before.
  __device__ const Scores<float, kWarpRows, kKeys>& scores(WgmmaKeys<T, kKeys, kDepth>) {
    if constexpr (kWaitsLate) {
      consumer_.wait_for_values(stage_, turn_);
      wait_products();
      pass_turn_once();
    }
    return next_;
  }

  // The online-softmax step: the running maximum rises to the largest of the scores that the mask
  // shows, sum and product become relative to it, and add exp(score - maximum) of these keys, the
  // product times their values. Weights are computed while the product of the step before goes on,
  // and summed with their own product.
  template <class S, class Mask>
  __device__ void online_softmax(const S& scores, const Mask& mask, Maxima& maximum, Sums&,
                                 Product& product) {
    const auto weights = softmax_weights<T>(scores, mask, maximum, product);
    contract_values(product, values(), weights);
  }

  __device__ StepPositions<kKeys> key_positions() const {
    return {first_key_ + key_block_ * kBlockKeys, first_key_ + last_ * kBlockKeys, behind_};
  }

  // Leaves the item's sums, or finishes its work tile with what other blocks left.
  template <class After>
  __device__ void combine(Maxima& maximum, const Sums&, Product& product) {
    wait_products();
    if (!is_first_) consumer_.release_values(stage_);
    is_first_ = true;
    if (lacks_step_) {
      take_turn();
      pass_turn();
      if (kWaitsLate) sync_warpgroup();  // as a step does: racecheck counts a thread's barriers
    }
    product.total_sums();
    auto* const left = reinterpret_cast<float*>(shared_ + kLeftAt);
    End(args_, *entry_, shared_, left).template finish<After>(maximum, product, state().sums);
  }

 private:
  using Consumer = WgmmaConsumer<Pipeline>;

  // The step's values, to be multiplied: what was multiplied before is done. The next step's scores
  // are begun first, so that the values' products go on while weights are computed of them.
  __device__ WgmmaValues<T, kKeys, kDepth, !kWaitsLate> values() {
    wait_products();
    if (!is_first_) consumer_.release_values(before_);
    if (kWaitsLate) consumer_.release_keys(stage_);
    is_first_ = false;
    find_ahead();
    take_turn();
    has_turn_ = true;
    ask_for_scores();
    if (!kWaitsLate) consumer_.wait_for_values(stage_, turn_);
    return {consumer_.at(stage_) + Pipeline::kTileBytes};
  }

  __device__ void begin_item() {
    item_ = &entry_->item;
    rows_ = item_->template rows<kRows>(args_);
    key_block_ =
        entry_->key_blocks.first + (Pipeline::group() - kGroups) * Pipeline::kStepKeyBlocks;
    last_ = entry_->key_blocks.last;
    const int steps = (last_ - entry_->key_blocks.first + Pipeline::kStepKeyBlocks - 1) /
                      Pipeline::kStepKeyBlocks;
    first_key_ = item_->sequence.skipped * kBlockKeys;
    const int keys = item_->sequence.keys;
    behind_ = first_key_ + last_ * kBlockKeys < keys ? keys : 0;
    lacks_step_ = kGroups > 1 && Pipeline::group() > 0 && steps % kGroups > 0;
    unrolled<2>([&](int i) {
      const QueryPlace at =
          item_->template place<kRows>(args_, min(Pipeline::row_of(i), rows_ - 1));
      query_lines_[i] = reinterpret_cast<const Vec16<T>*>(query_line<T>(args_.q, at));
    });
  }

  // Two warpgroups ask for scores in turns: one computes weights while the other multiplies.
  static constexpr bool kTakesTurns = kConsumers == 2 * kGroupThreads;
  __device__ static void take_turn() {
    if constexpr (kTakesTurns) {
      asm volatile("barrier.sync %0, %1;" ::"r"(8 + warp_index() / kGroupWarps), "n"(kConsumers)
                   : "memory");
    }
  }
  __device__ void pass_turn_once() {
    if (has_turn_) pass_turn();
    has_turn_ = false;
  }
  __device__ static void pass_turn() {
    if constexpr (kTakesTurns) {
      asm volatile("barrier.arrive %0, %1;" ::"r"(9 - warp_index() / kGroupWarps), "n"(kConsumers)
                   : "memory");
    }
  }
  // Waits for the keys of the upcoming step, if there is one.
  __device__ void find_ahead() {
    if (key_block_ + kGroups * Pipeline::kStepKeyBlocks < last_) ahead_ = consumer_.advance();
  }
  // Begins their products. After the last step they are of any keys, for nothing.
  __device__ void ask_for_scores() {
    const int first = warp_index() * kWarpRows % kRows / kGroupRows * kGroupRows;
    begin_scores<kRows>(next_, shared_ + kQueriesAt + first * kTmaRowBytes, keys_in(ahead_));
  }

  __device__ WgmmaKeys<T, kKeys, kDepth> keys_in(int stage) const {
    return {consumer_.at(stage), &rooms_};
  }
  __device__ typename Pipeline::State& state() const {
    return *reinterpret_cast<typename Pipeline::State*>(shared_ + kStateAt);
  }

  const AttentionArgs& args_;
  char* const shared_;
  Consumer consumer_;
  mutable KeyRooms rooms_;
  const ItemEntry* entry_ = nullptr;
  const WorkItem* item_ = nullptr;
  int key_block_ = 0, last_ = 0, rows_ = 0;
  int first_key_ = 0, behind_ = 0;  // of the item; added to positions that are another item's
  int stage_ = 0, before_ = 0, ahead_ = 0;  // of this step, the one before, the next
  unsigned turn_ = 0;                       // of the pipeline, at this step
  const Vec16<T>* query_lines_[2];
  bool waited_ = false;      // for the kernel before
  bool has_turn_ = false;    // and not passed on
  bool is_first_ = true;     // step of its item
  bool lacks_step_ = false;  // that the other group has: turns go on
  Scores<float, kWarpRows, kKeys> next_;
};

}  // namespace mirage::tile
