// Whole work tiles that blocks claim one at a time, each when it is about to end the one before.
//
// WorkItems of the chip with fewer multiprocessors have more of memory's rate for each of them.
// Where work tiles are equally long and every block takes several, blocks there take more of them.
// Which block takes a work tile changes nothing about its sums.
#pragma once

#include "tile/attention/scheduler.cuh"
#include "tile/sync/bounded_wait.cuh"

namespace mirage::tile {

// Whether a kernel's knobs say that its blocks claim work tiles.
MIRAGE_DEFAULT(Dynamic, 0)

// What a block's warps know of its claims: the work tiles of the latest two, and a
// barrier for each whose phases tell that it is there. All warps meet at the end of a work tile,
// long before the claim after the next takes its place.
class DynamicScheduler {
 public:
  static constexpr int kBytes = 2 * sizeof(Mbarrier) + 2 * sizeof(int2);  // aligned
  static constexpr int kSteps = 4;  // of a warp: so long before it ends a work tile it asks
  static constexpr int kLeastSteps = 2 * kSteps;
  static constexpr int kCountBits = 24;

  DynamicScheduler() = default;
  // `shared`: a multiple of a barrier's size.
  __device__ explicit DynamicScheduler(char* shared) : told_(reinterpret_cast<Mbarrier*>(shared)) {}

  // By all threads.
  __device__ void reset() const {
    if (threadIdx.x < 2) {
      init(told_[threadIdx.x]);
      fence_init();
    }
    __syncthreads();
  }

  // By one block of a call, when the kernel before has ended. A number of all work tiles that were
  // claimed follows the nonce's upper bits, in the place where the first cluster never leaves a
  // nonce.
  __device__ static void open(const AttentionArgs& args) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(args.workspace), "l"(tag(args))
                 : "memory");
  }

  // Claims a work tile; nothing waits for the answer before it is used.
  __device__ static void ask(const AttentionArgs& args, bool wanted, uint64_t& answer) {
    asm volatile(
        "{ .reg .pred wanted;\n"
        "setp.ne.s32 wanted, %2, 0;\n"
        "@wanted atom.relaxed.gpu.global.add.u64 %0, [%1], 1; }"
        : "+l"(answer)
        : "l"(args.workspace), "r"(static_cast<int>(wanted))
        : "memory");
  }

  // Tells the block's warps what claim `number` has got. The last claim of the call wipes out the
  // tag: every block claims until it gets nothing.
  __device__ void tell(const AttentionArgs& args, int number, uint64_t answer) const {
    bool asks = false;  // where the call was not open yet
    wait_at_most([&] {
      ask(args, asks, answer);
      asks = true;
      return (answer ^ tag(args)) >> kCountBits == 0;
    });
    const int count = static_cast<int>(answer ^ tag(args)), work_tiles = work_tiles_of(args);
    if (count == work_tiles - 1) *static_cast<uint64_t*>(args.workspace) = 0;
    const int work_tile = static_cast<int>(args.clusters.value) + count;
    place(number) = work_tile < work_tiles ? work_tile : -1;
    arrive(told_[number % 2]);
  }

  // The work tile of a claim, the first of which has number 1; -1: there was none left.
  __device__ int await(int number) const {
    wait_at_most([&] { return has_completed(told_[number % 2], (number - 1) / 2 % 2); });
    return place(number);
  }

 private:
  __device__ static uint64_t tag(const AttentionArgs& args) {
    return args.nonce >> kCountBits << kCountBits;
  }
  __device__ int& place(int number) const { return reinterpret_cast<int*>(told_ + 2)[number % 2]; }

  Mbarrier* told_ = nullptr;
};

// The items of a block that claims whole work tiles after its first one, if all are
// equally long, `least` key blocks or more; otherwise those of its range.
template <int kRows, class Args>
class DynamicItems : public WorkItems<kRows, Args> {
 public:
  DynamicItems() = default;
  __device__ DynamicItems(const Args& args, const Lengths& lengths,
                          DynamicScheduler dynamic_scheduler, int least)
      : dynamic_(dynamic_scheduler) {
    const int keys = __shfl_sync(~0u, lengths.from(args, 0), 0);
    const auto first = sequence<kRows>(args, 0, keys);
    claimed_ = first.key_blocks >= least && lengths.equal(args);
    if (!claimed_) {
      WorkItems<kRows, Args>::operator=({args, lengths});
      return;
    }
    this->args_ = &args;
    this->current_ = first;
    take(cluster_index());
  }

  __device__ bool next(WorkItem& item) {
    if (claimed_ && this->position_ >= this->end_) take(dynamic_.await(number_++));
    return WorkItems<kRows, Args>::next(item);
  }

  // Lets the call's blocks claim, when the kernel before has ended.
  __device__ void open(const AttentionArgs& args) const {
    if (claimed_ && blockIdx.x + threadIdx.x == 0) DynamicScheduler::open(args);
  }

  // Some steps before the end of a work tile one lane of the block claims another, and
  // tells of it a step later.
  __device__ void claim(const AttentionArgs& args, int steps) {
    if (!claimed_ || warp_index() > 0) return;
    DynamicScheduler::ask(args, steps == DynamicScheduler::kSteps && lane() == 0, answer_);
    if (steps == DynamicScheduler::kSteps - 1 && lane() == 0) dynamic_.tell(args, number_, answer_);
  }

 private:
  // Takes a whole work tile of sequences that differ in nothing but their numbers; below 0: none.
  __device__ void take(int work_tile) {
    if (work_tile < 0) return;
    const AttentionArgs& args = *this->args_;
    Sequence& sequence = this->current_;
    this->position_ = work_tile * sequence.length;
    this->end_ = this->position_ + sequence.length;
    this->b_ = quotient(work_tile, args.sequence_work_tiles);
    this->start_ = this->b_ * sequence.cost(args);
    sequence.first_token = this->b_ * args.q_len;
  }

  DynamicScheduler dynamic_;
  bool claimed_ = false;
  int number_ = 1;  // of the next claim
  uint64_t answer_ = 0;
};

}  // namespace mirage::tile
