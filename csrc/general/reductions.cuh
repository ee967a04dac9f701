// Reductions of a block: by threads that share results, through a few bytes of shared memory.
#pragma once

#include <cute/layout.hpp>

#include "general/joins.cuh"
#include "general/vectors.cuh"

namespace mirage::general {

using cute::Int;

// How threads share a reduction: kOuts results, each of kSteps steps. A result has kLanes lanes of
// a warp, and kWarps warps where there are fewer results than warps.
template <int kThreads, int kOuts, int kSteps>
struct Shares {
  static constexpr int kAll = kThreads / kWarpLanes;
  static constexpr int power(int n) {
    int found = 1;
    while (2 * found <= n) found *= 2;
    return found;
  }
  static constexpr int least(int a, int b) { return a < b ? a : b; }
  static constexpr int kLanes =
      least(least(power(kSteps), kWarpLanes), power(kOuts >= kThreads ? 1 : kThreads / kOuts));
  static constexpr int kWarps = kLanes < kWarpLanes
                                    ? 1
                                    : least(power(kOuts >= kAll ? 1 : kAll / kOuts),
                                            power((kSteps + kWarpLanes - 1) / kWarpLanes));
  static constexpr int kScratch = kWarps > 1 ? kAll : 0;  // floats per element of a vector
};

// finish(out, value) for every result, where value[i] is the join of what add(out, step, taken,
// value) joins to it for every step. A thread calls take(out, step, taken) for kAtOnce steps before
// it adds the first of these. Steps from `end` on add nothing: no thread goes through all of them.
// Neighbouring lanes have neighbouring steps of a result, or with `kTransposed` neighbouring
// results. Has barriers if the reduction uses scratch.
template <class Taken, class Op, int kThreads, int kOuts, int kSteps, int kWidth, bool kTransposed,
          int kAtOnce, class Take, class Add, class Finish>
__device__ void reduce(float* scratch, Take take, Add add, Finish finish, int end = kSteps) {
  using S = Shares<kThreads, kOuts, kSteps>;
  constexpr int kGroup = kWarpLanes / S::kLanes;  // results of a warp at a time
  const int warp = thread_of<kThreads>() / kWarpLanes, lane = thread_of<kWarpLanes>();
  const int part = warp % S::kWarps;
  const int mine = kTransposed ? lane % kGroup : lane / S::kLanes;
  const int first = (kTransposed ? lane / kGroup : lane % S::kLanes) + part * S::kLanes;
  constexpr int kEach = kThreads / kWarpLanes / S::kWarps * kGroup;  // results at a time
  constexpr int kStride = S::kLanes * S::kWarps, kRounds = kSteps / kStride;
  constexpr int kTogether = kRounds < kAtOnce ? (kRounds > 0 ? kRounds : 1) : kAtOnce;
  Taken taken[kTogether];
#pragma unroll 2
  for (int base = 0; base < kOuts; base += kEach) {
    const int out = base + warp / S::kWarps * kGroup + mine;
    float value[kWidth];
    const auto together = [&](auto count, int step) {
#pragma unroll
      for (int j = 0; j < count; ++j) take(out, step + j * kStride, taken[j]);
#pragma unroll
      for (int j = 0; j < count; ++j) add(out, step + j * kStride, taken[j], value);
    };
#pragma unroll
    for (int i = 0; i < kWidth; ++i) value[i] = Op::kIdentity;
    if (kOuts % kEach == 0 || out < kOuts) {
#pragma unroll 1
      for (int round = 0; round + kTogether <= kRounds && round * kStride < end; round += kTogether)
        together(Int<kTogether>{}, first + round * kStride);
      constexpr int kRest = kRounds % kTogether, kWhole = kRounds - kRest;
      if (kWhole * kStride < end) {
        together(Int<kRest>{}, first + kWhole * kStride);
        if (kSteps % kStride > first) together(Int<1>{}, first + kRounds * kStride);
      }
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
#pragma unroll
      for (int far = S::kLanes / 2; far > 0; far /= 2)
        value[i] =
            Op::join(value[i], __shfl_xor_sync(~0u, value[i], kTransposed ? far * kGroup : far));
    if constexpr (S::kWarps > 1) {
      if (lane == 0)
#pragma unroll
        for (int i = 0; i < kWidth; ++i) scratch[warp * kWidth + i] = value[i];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        value[i] = Op::kIdentity;
        for (int w = 0; w < S::kWarps; ++w)
          value[i] = Op::join(value[i], scratch[((warp - part) + w) * kWidth + i]);
      }
      __syncthreads();
    }
    if ((kOuts % kEach == 0 || out < kOuts) && first == 0) finish(out, value);
  }
}

// What lies of a tensor's row in a tile: from where on, and how many elements.
template <class T>
struct Row {
  const T* from;
  int64_t stride;
  int left;
};

// A thread's sums of a word of such rows, `column` being its first element's: add(word, sums) for
// every hop-th of them.
template <bool kAligned, int kAtOnce, class T, int kWidth, class Add>
__device__ void add_words(Row<T> row, int64_t hop, int steps, const void* end, Add add,
                          float (&sums)[kWidth]) {
  const T* from = row.from;
  const bool beyond = kAligned && steps > 0 && from + (steps - 1) * hop + kWidth > end;
  int whole = kAligned ? steps - beyond : 0;
  steps -= whole;
  const T* each[kAtOnce];  // where to read is known before what was read is used
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) each[j] = from + j * hop;
#pragma unroll 1
  for (; whole >= kAtOnce; whole -= kAtOnce) {
    Vector<T, kWidth> taken[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) taken[j] = read_if<kWidth>(each[j], true);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) each[j] += kAtOnce * hop;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) add(taken[j], sums);
  }
  from = each[0];
#pragma unroll 1
  for (; whole > 0; --whole, from += hop) add(read_if<kWidth>(from, true), sums);
#pragma unroll 1
  for (; steps > 0; --steps, from += hop) {  // one element after the other
    const int64_t left = kAligned ? static_cast<const T*>(end) - from : row.left;
    add(read_within<kWidth, false>(from, row.stride, left), sums);
  }
}

// finish(row, column, {value}) for the kColumns columns of every row of results, value being the
// join of elements of kSteps rows of a tensor: at(row, step) is one of those. Rows begin anywhere
// below `end`, but eight steps on words of 16 bytes lie as they did. So a thread adds up words of
// every so many rows as they are, and puts its sums where they belong among the `parts`, [threads
// of a column, kColumns]. Has barriers.
template <bool kAligned, class T, class Op, int kThreads, int kRows, int kColumns, int kSteps,
          int kAtOnce, class At, class Add, class Finish>
__device__ void reduce_words(float* parts, const void* end, At at, Add add, Finish finish) {
  constexpr int kWidth = 16 / sizeof(T), kWords = kColumns / kWidth + 1;
  constexpr int kParts = kThreads / kWords / kWidth * kWidth;
  const int thread = thread_of<kThreads>(), word = thread % kWords, part = thread / kWords;
#pragma unroll 1
  for (int row = 0; row < kRows; ++row) {
    Row<T> here = at(row, part);
    const int before = kAligned ? reinterpret_cast<uintptr_t>(here.from) % 16 / sizeof(T) : 0;
    const int64_t hop = at(row, part + kParts).from - here.from;
    const int column = word * kWidth - before;
    // A row that is not there has no first word either, though that begins before the row.
    const bool wanted = part < kParts && here.left > (column > 0 ? column : 0) && column < kColumns;
    here = {here.from + column * here.stride, here.stride, here.left - column};
    float sums[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sums[e] = Op::kIdentity;
    const int steps = wanted ? (kSteps - part + kParts - 1) / kParts : 0;
    add_words<kAligned, kAtOnce>(here, hop, steps, end, add, sums);
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      if (part < kParts && column + e >= 0 && column + e < kColumns)
        parts[part * kColumns + column + e] = sums[e];
    __syncthreads();
    for (int c = thread; c < kColumns; c += kThreads) {
      float joined[1] = {Op::kIdentity};
      for (int p = 0; p < kParts; ++p) joined[0] = Op::join(joined[0], parts[p * kColumns + c]);
      finish(row, c, joined);
    }
    __syncthreads();
  }
}

}  // namespace mirage::general
