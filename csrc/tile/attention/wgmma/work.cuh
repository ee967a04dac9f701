// Attention of many query rows: what one block does, as emitted kernels ask for it.
//
// Two warpgroups multiply, a third one copies. Scores of the next step are asked for before the
// values' products of this one, which go on while the next weights are computed.
#pragma once

#include "tile/attention/lazy_tiles.cuh"
#include "tile/attention/wgmma/combine.cuh"
#include "tile/attention/wgmma/keys.cuh"
#include "tile/attention/wgmma/masks.cuh"
#include "tile/attention/wgmma/pipeline.cuh"
#include "tile/dependent.cuh"

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
  using Ring = WideRing<T, kDepth, Knobs>;
  using Space = WideSpace<kRows, kDepth>;  // of a block in the workspace
  using End = WideEnd<T, kDepth, Knobs>;
  using Queries = RowFrag<T, kWarpRows, kDepth>;
  using Peaks = WidePeaks<kDepth>;
  using Sums = WideSums;
  using Product = WideProduct<kDepth>;
  // Where something is computed of the keys, scores are waited for after that.
  static constexpr bool kWaitsLate = kSumsKeys<Knobs>;

  static constexpr int kGroups = Ring::kGroups;  // of warpgroups that each take some of the keys
  static constexpr int kReaders = Ring::kReaders * kWarpLanes;  // threads
  // A whole warpgroup that copies leaves registers to the others.
  static constexpr int kWarpgroups = kWarps / kGroupWarps;
  static constexpr bool kMovesRegisters = Knobs::kCopiers == kGroupWarps && kBlocks == 1;
  static constexpr int kRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kCopierRegisters = kDepth > 64 ? 120 : 88;
  static constexpr int kReaderRegisters =
      least((kRegisters * kWarpgroups - kCopierRegisters) / (kWarpgroups - 1) / 8 * 8, 240);
  static constexpr int kOnesAt = Ring::kSlotsBytes;
  static constexpr int kQueriesAt = kOnesAt + kOnesBytes;
  static constexpr int kStateAt = kQueriesAt + kRows * kDepth * 2;
  static constexpr int kLeftAt = kStateAt + Ring::kStateBytes;
  static constexpr int kRoomAt = kLeftAt + End::kBytes;
  static constexpr int kRooms = 2 * WideLines<float, kKeys>::kRoom;  // floats, of a warpgroup
  static constexpr int kBytes = kRoomAt + Ring::kReaders / kGroupWarps * kRooms * 4;

  __device__ WgmmaAttention(const AttentionArgs& args, char* shared)
      : args_(args),
        shared_(shared),
        reader_(shared, state(), args.boxed),
        rooms_{reinterpret_cast<float*>(shared + kRoomAt) + warp_index() / kGroupWarps * kRooms,
               0} {
    write_ones<T>(shared + kOnesAt);
    fence_proxies();
    if (threadIdx.x == 0) {
      Ring::start(state());
      expect(state().sums, End::pushed_bytes());
    }
    __syncthreads();
    if (warp_index() >= Ring::kReaders) {
      if constexpr (kMovesRegisters) shrink_registers<kCopierRegisters>();
      WideCopier<T, kDepth, Knobs>(args, shared, state()).run();
      asm volatile("exit;");
    }
    if constexpr (kMovesRegisters) grow_registers<kReaderRegisters>();
    if (warp_index() >= kGroupWarps) pass_turn();
    if (cluster_size() > 1) prefetch_segment<T, kDepth, kRows>(args, kStages * kKeys, kReaders);
  }

  // The next part of the block's stretch; none for the warps that have copied.
  __device__ bool next_part() {
    entry_ = &reader_.next_part();
    if (entry_->more) begin_part();
    if (!waited_) {
      wait_for_previous();
      let_next_start();
      waited_ = true;
    }
    return entry_->more;
  }

  __device__ bool next_step() {
    unit_ += kGroups * Ring::kStepUnits;
    if (!kWaitsLate || unit_ >= last_) pass_turn_once();
    if (unit_ >= last_) return false;
    before_ = slot_;
    slot_ = ahead_;
    turn_ = reader_.turn();
    if (!kWaitsLate) reader_.release_keys(slot_);  // their scores are there
    return true;
  }

  __device__ int seq_len() const { return part_->sequence.keys; }
  __device__ int token_count() const { return part_->sequence.tokens; }

  __device__ KeyVector<int, kWarpRows> row_tokens() const {
    KeyVector<int, kWarpRows> tokens;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      tokens.at[0][i] = quotient(part_->tile * kRows + Ring::row_of(i), args_.group);
    }
    return tokens;
  }

  // The queries of this warp's rows; zeros in place of rows past the last.
  __device__ Queries queries() const {
    Queries found;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < kDepth / kChunkDepth; ++c) {
        const Octet<T>* const line = Ring::row_of(i) < rows_ ? query_lines_[i] : nullptr;
        found.at[i][c] = read_global(line, c * kChunkOctets + lane_quarter());
      }
    }
    return found;
  }
  __device__ Queries partitioned_queries() const { return queries(); }

  // An input of dims [D], or the part's line of one by heads of the cache; zeros if it is absent.
  __device__ DepthFrag<T, kDepth> vector(int index) const {
    DepthFrag<T, kDepth> found;
    const auto* line = static_cast<const T*>(args_.vectors[index]);
    if (line != nullptr) line += part_->head * args_.vector_heads[index];
#pragma unroll
    for (int c = 0; c < kDepth / kChunkDepth; ++c) {
      found.at[0][c] =
          read_global(reinterpret_cast<const Octet<T>*>(line), c * kChunkOctets + lane_quarter());
    }
    return found;
  }

  __device__ DepthFrag<T, kDepth> partitioned_vector(int index) const { return vector(index); }

  // Keeps the operand of all scores of the part, and asks for the first.
  __device__ void keep(const Queries& rows) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < kDepth / kChunkDepth; ++c) {
        const int octet = c * kChunkOctets + lane_quarter();
        const int at = octet / 8 * (kRows * kBoxLineBytes) + box_offset(Ring::row_of(i), octet % 8);
        if (Ring::group() == 0)
          *reinterpret_cast<Octet<T>*>(shared_ + kQueriesAt + at) = rows.at[i][c];
      }
    }
    fence_proxies();
    Ring::meet();
    __syncwarp();
    if (cluster_size() > 1) arrive_cluster();  // others may leave their sums here
    find_ahead();
    ask_for_scores();
    wait_products<0>();
  }

  __device__ WideKeys<T, kKeys, kDepth> keys() const { return keys_in(slot_); }

  // The step's products; they were computed a step before.
  __device__ const Scores<float, kWarpRows, kKeys>& scores(WideKeys<T, kKeys, kDepth>) {
    if constexpr (kWaitsLate) {
      reader_.wait_for_values(slot_, turn_);
      wait_products<0>();
      pass_turn_once();
    }
    return next_;
  }

  // The online-softmax step: the running maximum rises to the largest of the scores that the mask
  // shows, sum and product become relative to it, and add exp(score - maximum) of these keys, the
  // product times their values. Weights are computed while the product of the step before goes on,
  // and summed with their own product.
  template <class S, class Mask>
  __device__ void online_softmax(const S& scores, const Mask& mask, Peaks& peak, Sums&,
                                 Product& product) {
    const auto weights = softmax_weights<T>(scores, mask, peak, product);
    contract_values(product, values(), weights);
  }

  __device__ StepPositions<kKeys> key_positions() const {
    return {first_key_ + unit_ * kUnitKeys, first_key_ + last_ * kUnitKeys, behind_};
  }

  // Leaves the part's sums, or finishes its segment with what other blocks left.
  template <class After>
  __device__ void combine(Peaks& peak, const Sums&, Product& product) {
    wait_products<0>();
    if (!is_first_) reader_.release_values(slot_);
    is_first_ = true;
    if (lacks_step_) {
      take_turn();
      pass_turn();
      if (kWaitsLate) meet_warpgroup();  // as a step does: racecheck counts a thread's barriers
    }
    auto* const left = reinterpret_cast<float*>(shared_ + kLeftAt);
    End(args_, *entry_, shared_, left).template finish<After>(peak, product, state().sums);
  }

 private:
  using Reader = WideReader<Ring>;

  // The step's values, to be multiplied: what was multiplied before is done. The next step's scores
  // are begun first, so that the values' products go on while weights are computed of them.
  __device__ WideValues<T, kKeys, kDepth, !kWaitsLate> values() {
    wait_products<0>();
    if (!is_first_) reader_.release_values(before_);
    if (kWaitsLate) reader_.release_keys(slot_);
    is_first_ = false;
    find_ahead();
    take_turn();
    has_turn_ = true;
    ask_for_scores();
    if (!kWaitsLate) reader_.wait_for_values(slot_, turn_);
    return {reader_.at(slot_) + Ring::kTileBytes, shared_ + kOnesAt};
  }

  __device__ void begin_part() {
    part_ = &entry_->part;
    rows_ = part_->template rows<kRows>(args_);
    unit_ = entry_->units.first + (Ring::group() - kGroups) * Ring::kStepUnits;
    last_ = entry_->units.last;
    const int steps = (last_ - entry_->units.first + Ring::kStepUnits - 1) / Ring::kStepUnits;
    first_key_ = part_->sequence.skipped * kUnitKeys;
    const int keys = part_->sequence.keys;
    behind_ = first_key_ + last_ * kUnitKeys < keys ? keys : 0;
    lacks_step_ = kGroups > 1 && Ring::group() > 0 && steps % kGroups > 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const QueryPlace at = part_->template place<kRows>(args_, min(Ring::row_of(i), rows_ - 1));
      query_lines_[i] = reinterpret_cast<const Octet<T>*>(
          static_cast<const T*>(args_.q.at) + at.token * args_.q.token + at.head * args_.q.head);
    }
  }

  // Two warpgroups ask for scores in turns: one computes weights while the other multiplies.
  static constexpr bool kTakesTurns = kReaders == 2 * kGroupThreads;
  __device__ static void take_turn() {
    if constexpr (kTakesTurns) {
      asm volatile("barrier.sync %0, %1;" ::"r"(8 + warp_index() / kGroupWarps), "n"(kReaders)
                   : "memory");
    }
  }
  __device__ void pass_turn_once() {
    if (has_turn_) pass_turn();
    has_turn_ = false;
  }
  __device__ static void pass_turn() {
    if constexpr (kTakesTurns) {
      asm volatile("barrier.arrive %0, %1;" ::"r"(9 - warp_index() / kGroupWarps), "n"(kReaders)
                   : "memory");
    }
  }
  // Waits for the keys of the upcoming step, if there is one.
  __device__ void find_ahead() {
    if (unit_ + kGroups * Ring::kStepUnits < last_) ahead_ = reader_.advance();
  }
  // Begins their products. After the last step they are of any keys, for nothing.
  __device__ void ask_for_scores() {
    const int first = warp_index() * kWarpRows % kRows / kGroupRows * kGroupRows;
    begin_scores<kRows>(next_, shared_ + kQueriesAt + first * kBoxLineBytes, keys_in(ahead_));
  }

  __device__ WideKeys<T, kKeys, kDepth> keys_in(int slot) const {
    return {reader_.at(slot), &rooms_};
  }
  __device__ typename Ring::State& state() const {
    return *reinterpret_cast<typename Ring::State*>(shared_ + kStateAt);
  }

  const AttentionArgs& args_;
  char* const shared_;
  Reader reader_;
  mutable KeyRooms rooms_;
  const PartEntry* entry_ = nullptr;
  const Part* part_ = nullptr;
  int unit_ = 0, last_ = 0, rows_ = 0;
  int first_key_ = 0, behind_ = 0;  // of the part; added to positions that are another part's
  int slot_ = 0, before_ = 0, ahead_ = 0;  // of this step, the one before, the next
  unsigned turn_ = 0;                      // of the ring, at this step
  const Octet<T>* query_lines_[2];
  bool waited_ = false;      // for the kernel before
  bool has_turn_ = false;    // and not passed on
  bool is_first_ = true;     // step of its part
  bool lacks_step_ = false;  // that the other group has: turns go on
  Scores<float, kWarpRows, kKeys> next_;
};

}  // namespace mirage::tile
