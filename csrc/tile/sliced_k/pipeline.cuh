// Sliced-K: each warp multiplies its own slice of the depth, from its own multistage pipeline.
//
// cp.async copies run kStages - 1 steps ahead of the arithmetic. Each warp has its own stages in
// shared memory and reads only what its own lanes have copied, so a step needs no block barrier.
// (Stages in registers were slower: loads of several steps wait for one another, 1.2 to 2.3 times
// the floor at any depth.)
#pragma once

#include "tile/mma/fragments.cuh"
#include "tile/sync/dependent_launch.cuh"
#include "tile/work.cuh"
#include "variants.h"

MIRAGE_SCHEDULE(SlicedK)
MIRAGE_KNOB(Chunks)

namespace mirage::tile {

// How many vectors of 8-bit elements a lane has of a Step, which begins with them.
template <class Step, class = void>
constexpr int kByteVectors = 0;
template <class Step>
constexpr int kByteVectors<Step, std::void_t<decltype(Step::kByteVectors)>> = Step::kByteVectors;

// A stage of one warp: room for a Step, a struct of fragments of depth Step::kDepth. It consists of
// segments: one or two chunks of eight lines, each line's part contiguous, 64 or 128 bytes, so that
// one copy moves whole cache lines (128 bytes are 4 % faster than 64 at 8 tokens, 10 % at 32).
// Fragments keep the chunks of a line together, so vectors 2j and 2j + 1 of a lane share a segment.
// Beside vectors of 16 elements of 8 bits, a lane's are neighbours: they have the same depth.
template <class Step>
struct StageBuffer {
  static constexpr int kBytesFirst = kByteVectors<Step>;
  static constexpr int kSegmentChunks = Step::kDepth / kChunkDepth % 2 == 0 ? 2 : 1;
  static constexpr int kSegmentVectors = kSegmentChunks * kChunkVectors;  // per line
  static constexpr int kSegmentBytes = kLineTile * kSegmentVectors * kVec16Bytes;
  static constexpr int kVectors16 = sizeof(Step) / kVec16Bytes;  // per lane
  static constexpr int kBytes = kVectors16 / kSegmentChunks * kSegmentBytes;
  char* at;
  int prefetches = 0;  // not 0: prefetches so many lines of each weight into L2, copies nothing

  // The swizzle: odd lines swap their halves, so that reading a chunk of eight lines has no bank
  // conflicts, and neighbours where lanes read every second vector.
  __device__ static int offset(int line, int vec) {
    constexpr int kSwap = kChunkVectors + (kBytesFirst > 0);
    const int swapped = kSegmentChunks == 2 ? vec ^ line % 2 * kSwap : vec;
    return (line * kSegmentVectors + swapped) * kVec16Bytes;
  }

  // The segment of lines 8 i + 0..7 that holds chunk c.
  template <Dims kDims, class T, int kLines, int kChunks>
  __device__ char* segment(Fragment<kDims, T, kLines, kChunks> Step::* field, int i, int c) const {
    Step shape;  // for offsets only, never read
    const auto* vec = &(shape.*field).at[i][c];
    const auto before = (reinterpret_cast<const char*>(vec) - reinterpret_cast<char*>(&shape)) /
                        static_cast<int>(sizeof(Vec16<T>));
    return at + before / kSegmentChunks * kSegmentBytes;
  }

  __device__ Step read() const {
    Step step;
#pragma unroll
    for (int j = 0; j < kVectors16; ++j) {
      const int chunk = j % kSegmentChunks;
      const int vec = j < kBytesFirst || kBytesFirst == 0 ? chunk * kChunkVectors + lane_quarter()
                                                          : 2 * lane_quarter() + chunk;
      const char* from = at + j / kSegmentChunks * kSegmentBytes + offset(lane_line(), vec);
      reinterpret_cast<uint4*>(&step)[j] = *reinterpret_cast<const uint4*>(from);
    }
    return step;
  }
};

template <class Step, int kStages, int kWarps>
struct StageBuffers {
  static constexpr int kWarpBytes = kStages * StageBuffer<Step>::kBytes;
  static constexpr int kBytes = kWarps * kWarpBytes;
};

struct Start {
  bool early;          // the first weights may be read before the previous kernel ends
  bool ready = false;  // everything was written before this kernel started
  __device__ constexpr Start(bool weights) : early(weights) {}
  __device__ static constexpr Start at_once() {
    Start start{true};
    start.ready = true;
    return start;
  }
};

// PDL without early weights: so many bytes of the first step's weights, per block, are prefetched
// into L2 before the previous kernel ends, if warps have more than one step. 9.5 us instead of 9.9
// (4096 -> 4096, 16 tokens); 9.6 with 16 or 48 KB; 9.5 with 32, but gated MLPs take 0.1 to 0.3 us
// more.
constexpr int kPrefetchBytes = 24 * 1024;

struct Steps {
  int first, last, stride;  // k of this warp's first step, end of the depth, k between its steps
  Start start;
};

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// For k in first, first + stride, ... < last: copies the step at k, and kStages - 1 steps later
// calls compute(step), or compute(step, k) if it takes k. Neighbouring blocks start at different k
// and wrap around; starting at the same k all would ask for the same tokens at the same time (1 to
// 6 % slower). `stages`: StageBuffers<Step, kStages, kWarps>::kBytes of shared memory, free again
// after the block's next barrier. `before`: work before the loop.
template <int kStages, class Step, class CopyWeights, class CopyTokens, class Before, class Compute>
__device__ void pipeline(char* stages, Steps steps, CopyWeights copy_weights,
                         CopyTokens copy_tokens, Before before, Compute compute) {
  constexpr int kBufferBytes = StageBuffer<Step>::kBytes, kWarpBytes = kStages * kBufferBytes;
  char* const begin = stages + warp_index() * kWarpBytes;
  char* const end = begin + kWarpBytes;
  const int count = max(0, (steps.last - steps.first + steps.stride - 1) / steps.stride);
  const int turn = blockIdx.x % ((steps.last + steps.stride - 1) / steps.stride);
  const int start = steps.first + turn * steps.stride;
  const auto after = [&](int k) {
    return k + steps.stride < steps.last ? k + steps.stride : steps.first;
  };
  const auto copy_first_weights = [&](int k) {
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (s < count) copy_weights(StageBuffer<Step>{begin + s * kBufferBytes}, k);
      k = after(k);
    }
  };
  int k = start < steps.last ? start : steps.first;
  int computed = k;  // k of the next step to compute
  if (steps.start.early) {
    copy_first_weights(k);
  } else if (count > 1) {
    const int lines =
        kPrefetchBytes / (StageBuffer<Step>::kSegmentVectors * kVec16Bytes) * kWarpLanes;
    copy_weights(StageBuffer<Step>{begin, lines / static_cast<int>(blockDim.x)}, k);
  }
  if (!steps.start.ready) grid_dependency_wait();
  before.ask();
  if (!steps.start.early) copy_first_weights(k);
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < count) copy_tokens(StageBuffer<Step>{begin + s * kBufferBytes}, k);
    commit_copies();  // the first group includes the first weights of all these steps
    k = after(k);
  }
  before.compute();
  char *full = begin, *empty = begin + (kStages - 1) * kBufferBytes;
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    __syncwarp();  // all lanes have read the previous step, whose stage is written now
    if (s + kStages - 1 < count) {
      copy_weights(StageBuffer<Step>{empty}, k);
      copy_tokens(StageBuffer<Step>{empty}, k);
      k = after(k);
    }
    commit_copies();  // also when empty: waits count groups
    wait_copies<kStages - 1>();
    __syncwarp();  // the other lanes' copies have landed, too
    if constexpr (std::is_invocable_v<Compute, const Step&, int>) {
      compute(StageBuffer<Step>{full}.read(), computed);
      computed = after(computed);
    } else {
      compute(StageBuffer<Step>{full}.read());
    }
    empty = full;
    full = full + kBufferBytes == end ? begin : full + kBufferBytes;
  }
}

template <int kStages, class Step, class CopyWeights, class CopyTokens, class Compute>
__device__ void pipeline(char* stages, Steps steps, CopyWeights copy_weights,
                         CopyTokens copy_tokens, Compute compute) {
  pipeline<kStages, Step>(stages, steps, copy_weights, copy_tokens, Nothing{}, compute);
}

}  // namespace mirage::tile
