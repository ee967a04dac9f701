// The software pipeline: copies run kStages - 1 steps ahead of the arithmetic.
//
// The ring lies in shared memory, a part of it for each warp: what a warp reads only its own lanes
// have copied, so a step needs no barrier of the block. (A ring in registers was measured first:
// loads of several steps wait for one another, and any depth ran like a depth of one, 1.2 to 2.3
// times the floor.)
#pragma once

#include <type_traits>

#include "tile/mma/fragments.cuh"
#include "tile/sync/dependent_launch.cuh"

namespace mirage::tile {

// A warp's place for one Step, a struct of fragments of depth Step::kDepth. It consists of
// segments: one or two chunks of eight lines, each line's part contiguous, 64 or 128 bytes, so that
// one copy moves whole cache lines (128 bytes against 64: 4 % faster at 8 tokens, 10 % at 32).
// Fragments keep the chunks of a line together, hence octets 2j and 2j + 1 of a lane share a
// segment.
template <class Step>
struct StageBuffer {
  static constexpr int kSegmentChunks = Step::kDepth / kChunkDepth % 2 == 0 ? 2 : 1;
  static constexpr int kSegmentVectors = kSegmentChunks * kChunkVectors;  // per line
  static constexpr int kSegmentBytes = kLineTile * kSegmentVectors * kVec16Bytes;
  static constexpr int kVectors16 = sizeof(Step) / kVec16Bytes;  // per lane
  static constexpr int kBytes = kVectors16 / kSegmentChunks * kSegmentBytes;
  char* at;
  int finds = 0;  // not 0: of each weight so many lines are brought into L2, and nothing is copied

  // Lines of odd number swap their halves: reading a chunk of eight lines meets no bank twice.
  __device__ static int offset(int line, int octet) {
    const int swapped = kSegmentChunks == 2 ? octet ^ line % 2 * kChunkVectors : octet;
    return (line * kSegmentVectors + swapped) * kVec16Bytes;
  }

  // The segment of lines 8 i + 0..7 that holds chunk c.
  template <Dims kDims, class T, int kLines, int kChunks>
  __device__ char* segment(Fragment<kDims, T, kLines, kChunks> Step::* field, int i, int c) const {
    Step shape;  // never read, only measured
    const auto* octet = &(shape.*field).at[i][c];
    const auto before = (reinterpret_cast<const char*>(octet) - reinterpret_cast<char*>(&shape)) /
                        static_cast<int>(sizeof(Vec16<T>));
    return at + before / kSegmentChunks * kSegmentBytes;
  }

  __device__ Step read() const {
    Step step;
#pragma unroll
    for (int j = 0; j < kVectors16; ++j) {
      const int octet = j % kSegmentChunks * kChunkVectors + lane_quarter();
      const char* from = at + j / kSegmentChunks * kSegmentBytes + offset(lane_line(), octet);
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
  bool early;          // whether the first weights may be read before the kernel before ends
  bool ready = false;  // whether all that is read was there before this kernel started
  __device__ constexpr Start(bool weights) : early(weights) {}
  __device__ static constexpr Start at_once() {
    Start start{true};
    start.ready = true;
    return start;
  }
};

// Weights of the first step that come into L2 before the kernel before has ended, where nothing is
// promised and warps have more than one step: so many bytes of each, per block. 9.5 us instead of
// 9.9 (4096 -> 4096, 16 tokens); with 16 or 48 KB 9.6, with 32 as many but gated MLPs 0.1 to 0.3
// more.
constexpr int kPrefetchBytes = 24 * 1024;

struct Steps {
  int first, last, stride;  // k of this warp's first step, end of the depth, k between its steps
  Start start;
};

// What a block does before the loop has two parts; the weights' copies start in between.
struct Nothing {
  __device__ void ask() const {}
  __device__ void compute() const {}
};

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// For k in first, first + stride, ... < last: both is_producer(buffer, k), and kStages - 1 steps
// later compute(step), or compute(step, k) if it takes k. Neighbouring blocks start at different k
// and come round to the rest, else all would ask for the same tokens at the same time (1 to 6 %
// slower). `ring`: StageBuffers<Step, kStages, kWarps>::kBytes of shared memory, free again for the
// block after its next barrier. `before`: what asks for more than the steps and what computes with
// it, once the first copies are on their way.
template <int kStages, class Step, class CopyWeights, class CopyTokens, class Before, class Compute>
__device__ void pipeline(char* ring, Steps steps, CopyWeights copy_weights, CopyTokens copy_tokens,
                         Before before, Compute compute) {
  constexpr int kBufferBytes = StageBuffer<Step>::kBytes, kWarpBytes = kStages * kBufferBytes;
  char* const begin = ring + warp_index() * kWarpBytes;
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
  int computed = k;  // of the step that is next to be computed
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
    commit_copies();  // the first group holds the first weights of all these steps, too
    k = after(k);
  }
  before.compute();
  char *full = begin, *empty = begin + (kStages - 1) * kBufferBytes;
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    __syncwarp();  // all lanes have read the step before, whose buffer is written now
    if (s + kStages - 1 < count) {
      copy_weights(StageBuffer<Step>{empty}, k);
      copy_tokens(StageBuffer<Step>{empty}, k);
      k = after(k);
    }
    commit_copies();  // also when empty: the count of groups is what is waited on
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
__device__ void pipeline(char* ring, Steps steps, CopyWeights copy_weights, CopyTokens copy_tokens,
                         Compute compute) {
  pipeline<kStages, Step>(ring, steps, copy_weights, copy_tokens, Nothing{}, compute);
}

}  // namespace mirage::tile
