// Steps of keys and values as boxes of a cache, copied whole by the copy engine.
//
// A box has 64 elements of as many tokens as lie in one page, if its first one is a multiple of
// them: as it lands it is an operand of the tensor cores.
#pragma once

#include "tile/attention/tma.cuh"
#include "tile/grid.cuh"

namespace mirage::tile {

// A barrier's phase completes after so many bytes more.
__device__ inline void await_bytes(Mbarrier& barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}
// For as many threads.
__device__ inline void arrive_for(Mbarrier& barrier, uint32_t threads) {
  asm volatile(
      "mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(threads)
      : "memory");
}

// The boxes of a step's keys, or of its values, each a lane's to ask for: all elements of the first
// tokens, then of the next.
template <int kKeys, int kDepth>
class StepBoxes {
 public:
  static constexpr int kGroups = kDepth / kTmaDepth;
  static_assert(kGroups * kKeys / kBlockKeys <= kWarpLanes, "a lane for every box");
  static constexpr int kFewest = kBlockKeys;  // tokens of a box

  __host__ __device__ explicit StepBoxes(const AttentionArgs& args) : tokens_(kKeys) {
    if (args.block_table == nullptr) return;
    const auto page = static_cast<int>(args.page.value), most = page & -page;
    if (most < kKeys) tokens_ = most;
  }

  __host__ __device__ int tokens() const { return tokens_; }
  __device__ bool may_begin(const AttentionArgs& args, int token) const {
    return args.block_table == nullptr || token % tokens_ == 0;
  }
  __device__ bool has(int box) const { return box < kGroups * kKeys / tokens_; }
  __device__ int token(int box) const { return box / kGroups * tokens_; }
  __device__ int depth(int box) const { return box % kGroups * kTmaDepth; }
  // Where it lands.
  __device__ int place(int box) const {
    return (box % kGroups * kKeys + token(box)) * kTmaRowBytes;
  }

 private:
  int tokens_;
};

// A call with boxes of steps, where caches allow it.
template <class T, int kKeys, int kDepth>
AttentionArgs with_step_boxes(AttentionArgs args) {
  const BoxShape box{StepBoxes<kKeys, kDepth>(args).tokens(), 1};
  args.boxed = box.tokens >= StepBoxes<kKeys, kDepth>::kFewest &&
               encode_boxes<T, kDepth>(&args.k_boxes, args, args.k, box) &&
               encode_boxes<T, kDepth>(&args.v_boxes, args, args.v, box);
  return args;
}

}  // namespace mirage::tile
