// Attention of many query rows: what one block does, as emitted kernels ask for it.
//
// Two warpgroups multiply, a third one copies. Scores of the next step are asked for before the
// values' products of this one, which go on while the next weights are computed.
#pragma once

#include "tile/attention_wide_keys.cuh"
#include "tile/attention_wide_masks.cuh"
#include "tile/attention_wide_meet.cuh"
#include "tile/attention_wide_ring.cuh"
#include "tile/dependent.cuh"

namespace mirage::tile {

constexpr int least(int a, int b) { return a < b ? a : b; }

// Copies into the shared memory of a block of the crew, and counts what has landed there.
__device__ inline void copy_to_block(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(shared_address(from)), "r"(bytes), "r"(barrier)
      : "memory");
}

template <class T, int kDepth_, class Knobs>
class WideAttentionWork {
 public:
  static constexpr int kDepth = kDepth_, kRows = Knobs::kRows, kKeys = Knobs::kKeys,
                       kStages = Knobs::kStages;
  static constexpr int kWarps = Knobs::kWarps, kThreads = kWarps * kWarpLanes;
  static constexpr int kBlocks = Knobs::kBlocks;
  static constexpr int kTogether = 4;
  using Ring = WideRing<T, kDepth, Knobs>;
  using Space = WideSpace<kRows, kDepth>;
  using Left = LeftRows<kDepth>;
  using Queries = RowFrag<T, kWarpRows, kDepth>;
  using Peaks = WidePeaks;
  using Sums = WideSums;
  using Product = WideProduct<kDepth>;

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
  static constexpr int kLeftBytes = kGroups * kRows * Left::kPitch * 4;
  static constexpr int kRoomAt = kLeftAt + kLeftBytes;  // a float per key and warpgroup
  static constexpr int kBytes = kRoomAt + Ring::kReaders / kGroupWarps * kKeys * 4;

  __device__ WideAttentionWork(const AttentionArgs& args, char* shared)
      : args_(args),
        shared_(shared),
        left_(reinterpret_cast<float*>(shared + kLeftAt)),
        reader_(shared, state()) {
    write_ones<T>(shared + kOnesAt);
    fence_operands();
    if (threadIdx.x == 0) {
      Ring::start(state());
      expect(state().sums, kLeftBytes);
    }
    if (cluster_size() > 1) prefetch_segment<T, kDepth, kRows>(args, kStages * kKeys);
    __syncthreads();
    wait_for_previous();
    let_next_start();
    if (warp_index() >= Ring::kReaders) {
      if constexpr (kMovesRegisters) shrink_registers<kCopierRegisters>();
      WideCopier<T, kDepth, Knobs>(args, shared, state()).run();
      asm volatile("exit;");
    }
    if constexpr (kMovesRegisters) grow_registers<kReaderRegisters>();
    if (warp_index() >= kGroupWarps) pass_turn();
  }

  // The next part of the block's stretch; none for the warps that have copied.
  __device__ bool next_part() {
    entry_ = &reader_.next_part();
    if (!entry_->more) return false;
    part_ = &entry_->part;
    rows_ = part_->template rows<kRows>(args_);
    unit_ = part_->first + (Reader::group() - kGroups) * Ring::kStepUnits;
    last_ = part_->last;
    const int steps = (last_ - part_->first + Ring::kStepUnits - 1) / Ring::kStepUnits;
    lacks_step_ = kGroups > 1 && Reader::group() > 0 && steps % kGroups > 0;
    return true;
  }

  __device__ bool next_step() {
    if (!is_first_) pass_turn();
    unit_ += kGroups * Ring::kStepUnits;
    if (unit_ >= last_) return false;
    before_ = slot_;
    slot_ = ahead_;
    return true;
  }

  __device__ int seq_len() const { return part_->sequence.keys; }
  __device__ int token_count() const { return part_->sequence.tokens; }

  __device__ KeyVector<int, kWarpRows> row_tokens() const {
    KeyVector<int, kWarpRows> tokens;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      tokens.at[0][i] = quotient(part_->tile * kRows + row_of(i), args_.group);
    }
    return tokens;
  }

  // The queries of this warp's rows; zeros in place of rows past the last.
  __device__ Queries queries() const {
    Queries found;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const QueryPlace at = part_->template place<kRows>(args_, min(row_of(i), rows_ - 1));
      const T* line =
          static_cast<const T*>(args_.q.at) + at.token * args_.q.token + at.head * args_.q.head;
#pragma unroll
      for (int c = 0; c < kDepth / kChunkDepth; ++c) {
        const auto octet =
            reinterpret_cast<const Octet<T>*>(line)[c * kChunkOctets + lane_quarter()];
        found.at[i][c] = row_of(i) < rows_ ? octet : Octet<T>{};
      }
    }
    return found;
  }
  __device__ Queries unread_queries() const { return queries(); }

  // An input of dims [D], or the part's line of one by heads of the cache; zeros if it is absent.
  __device__ DepthFrag<T, kDepth> vector(int index) const {
    DepthFrag<T, kDepth> found{};
    const auto* first = static_cast<const T*>(args_.vectors[index]);
    if (first == nullptr) return found;
    first += part_->head * args_.vector_heads[index];
#pragma unroll
    for (int c = 0; c < kDepth / kChunkDepth; ++c) {
      found.at[0][c] = reinterpret_cast<const Octet<T>*>(first)[c * kChunkOctets + lane_quarter()];
    }
    return found;
  }

  // Keeps the operand of all scores of the part, and asks for the first.
  __device__ void keep(const Queries& rows) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < kDepth / kChunkDepth; ++c) {
        const int octet = c * kChunkOctets + lane_quarter();
        const int at = octet / 8 * (kRows * kBoxLineBytes) + box_offset(row_of(i), octet % 8);
        if (group() == 0) *reinterpret_cast<Octet<T>*>(shared_ + kQueriesAt + at) = rows.at[i][c];
      }
    }
    fence_operands();
    meet();
    if (cluster_size() > 1) arrive_cluster();  // others may leave their sums here
    ask_for_scores(unit_ + kGroups * Ring::kStepUnits < last_);
    wait_products<0>();
  }

  __device__ WideKeys<T, kKeys, kDepth> keys() const { return keys_in(slot_); }
  __device__ WideKeys<T, kKeys, kDepth> unread_keys() const { return keys(); }

  // The step's products; they were computed a step before.
  __device__ Scores<float, kWarpRows, kKeys> scores(WideKeys<T, kKeys, kDepth>) const {
    return next_;
  }

  // Before they are multiplied: what was multiplied before is done. The next step's scores come
  // first, so that the values' products go on while weights are computed of them.
  __device__ WideValues<T, kKeys, kDepth> values() {
    wait_products<0>();
    if (!is_first_) reader_.release(before_);
    is_first_ = false;
    take_turn();
    ask_for_scores(unit_ + kGroups * Ring::kStepUnits < last_);
    return {reader_.at(slot_) + Ring::kTileBytes, shared_ + kOnesAt};
  }

  __device__ StepPositions<kKeys> key_positions() const {
    const int skipped = part_->sequence.skipped, keys = part_->sequence.keys;
    const int end = (skipped + last_) * kUnitKeys;
    return {(skipped + unit_) * kUnitKeys, end, end < keys ? keys : 0};
  }

  // Leaves the part's sums, or finishes its segment with what other blocks left.
  template <class After>
  __device__ void combine(const Peaks& peak, const Sums&, const Product& product) {
    wait_products<0>();
    if (!is_first_) reader_.release(slot_);
    is_first_ = true;
    if (lacks_step_) {
      take_turn();
      pass_turn();
    }
    if (cluster_size() > 1) {
      share<After>(peak, product);
      return;
    }
    leave(left_, peak, product);
    meet();
    part_->first > 0 ? contribute() : finish<After>();
    meet();
  }

 private:
  using Reader = WideReader<Ring>;
  // Two warpgroups ask for scores in turns: one computes weights while the other multiplies.
  static constexpr bool kTakesTurns = kReaders == 2 * kGroupThreads;
  __device__ static void take_turn() {
    if constexpr (kTakesTurns) {
      asm volatile("barrier.sync %0, %1;" ::"r"(8 + warp_index() / kGroupWarps), "n"(kReaders)
                   : "memory");
    }
  }
  __device__ static void pass_turn() {
    if constexpr (kTakesTurns) {
      asm volatile("barrier.arrive %0, %1;" ::"r"(9 - warp_index() / kGroupWarps), "n"(kReaders)
                   : "memory");
    }
  }
  __device__ static int group() { return Reader::group(); }
  // Begins the products of the upcoming step. After the last one they are of any keys, for nothing.
  __device__ void ask_for_scores(bool has_step) {
    if (has_step) ahead_ = reader_.advance();
    const int first = warp_index() * kWarpRows % kRows / kGroupRows * kGroupRows;
    begin_scores<kRows>(next_, shared_ + kQueriesAt + first * kBoxLineBytes, keys_in(ahead_));
  }

  __device__ WideKeys<T, kKeys, kDepth> keys_in(int slot) const {
    auto* const room = reinterpret_cast<char*>(left_) + kLeftBytes;
    return {reader_.at(slot), reinterpret_cast<float*>(room) + warp_index() / kGroupWarps * kKeys};
  }
  // A barrier of the threads that do not copy.
  __device__ static void meet() {
    __syncwarp();
    asm volatile("barrier.cta.sync.aligned 1, %0;" ::"n"(kReaders) : "memory");
  }
  // Row of the tile of this lane's line i.
  __device__ static int row_of(int i) {
    return warp_index() * kWarpRows % kRows + i * kLineTile + lane_line();
  }
  __device__ typename Ring::State& state() const {
    return *reinterpret_cast<typename Ring::State*>(shared_ + kStateAt);
  }

  __device__ Space space() const {
    return {static_cast<char*>(args_.workspace), static_cast<int>(gridDim.x)};
  }

  // Leaves what this warp has among its block's rows.
  __device__ void leave(float* at, const Peaks& peak, const Product& product) {
    const Left left{at, kRows};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* const to = left.row(group(), row_of(i));
#pragma unroll
      for (int d = 0; d < kDepth / kTokenTile; ++d) {
        const float* pair = &product.at[d / 8][d % 8][2 * i];
        *reinterpret_cast<float2*>(to + d * kTokenTile + lane_quarter() * 2) =
            make_float2(pair[0], pair[1]);
      }
      if (lane_quarter() == 0) {
        *reinterpret_cast<float2*>(to + kDepth) = make_float2(peak.at[0][i], product.sums[2 * i]);
      }
    }
  }

  template <class Take>
  __device__ static void for_each(int rows, Take take) {
#pragma unroll 1
    for (int i = threadIdx.x * 4; i < rows * kDepth; i += kReaders * 4) {
      const int row = static_cast<unsigned>(i) / kDepth;
      take(RowElement{row, i - row * kDepth});
    }
  }

  __device__ void contribute() {
    const int block = blockIdx.x;
    const Left left{left_, kRows};
    for_each(rows_, [&](RowElement e) {
      const WideTotal total = left.total(kGroups, e);
      const auto& v = total.values;
      *space().values(block, e) = make_float4(v[0], v[1], v[2], v[3]);
      if (e.d == 0) *space().sums(block, e.row) = make_float4(total.peak, total.sum, 0.0f, 0.0f);
    });
    meet();
    if (threadIdx.x == 0) announce(space().nonce(block), args_.nonce);
  }

  template <class After>
  __device__ void finish() {
    const int first = blockIdx.x + 1, last = entry_->last_block;
    if (last >= first) {
      for (int i = first + threadIdx.x; i <= last; i += kReaders) {
        await(space().nonce(i), args_.nonce);
      }
      meet();
    }
    const Left left{left_, kRows};
    WideResults<T, kRows> results(args_, *part_);
    for_each(rows_, [&](RowElement e) {
      WideTotal total = left.total(kGroups, e);
      add_left<kTogether>(total, space(), first, last, e);
      results.template take<After>(e, total);
    });
  }

  // Every block of a crew finishes some of the rows. The ring is free by now: what goes to the
  // others is left there.
  template <class After>
  __device__ void share(const Peaks& peak, const Product& product) {
    const int crew = cluster_size(), rows = kRows / crew, rank = cluster_rank();
    float* const out = reinterpret_cast<float*>(shared_);
    CopyBarrier& arrived = state().sums;
    meet();
    leave(out, peak, product);
    fence_operands();
    meet();
    wait_cluster();
    if (threadIdx.x < crew * kGroups) {
      const int owner = threadIdx.x / kGroups, g = threadIdx.x % kGroups;
      copy_to_block(in_block(Left{left_, rows}.row(rank * kGroups + g, 0), owner),
                    Left{out, kRows}.row(g, owner * rows), rows * Left::kPitch * 4,
                    in_block(&arrived, owner));
    }
    wait_for_pushes(arrived, 0);
    arrive_cluster();
    const int first = rank * rows;
    const Left left{left_, rows};
    WideResults<T, kRows> results(args_, *part_);
    for_each(min(rows, rows_ - first), [&](RowElement e) {
      WideTotal total = left.total(crew * kGroups, e);
      results.template take<After>({first + e.row, e.d}, total);
    });
    wait_cluster();  // others may still read what was left here
  }

  const AttentionArgs& args_;
  char* const shared_;
  float* const left_;
  Reader reader_;
  const PartEntry* entry_ = nullptr;
  const Part* part_ = nullptr;
  int unit_ = 0, last_ = 0, rows_ = 0;
  int slot_ = 0, before_ = 0, ahead_ = 0;  // of this step, the one before, the next
  bool is_first_ = true;                   // step of its part
  bool lacks_step_ = false;                // that the other group has: turns go on
  Scores<float, kWarpRows, kKeys> next_;
};

}  // namespace mirage::tile
