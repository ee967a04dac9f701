// Predicated copies: tiles of any extent from device memory into the fragments of a stage.
//
// They are cp.async copies of 16 bytes. Lines past the tensor's last and k past its depth read as
// zero and touch no memory. Pointers must be aligned to 16 bytes; depth and strides must be
// multiples of 8 elements.
#pragma once

#include "tile/mma/fragments.cuh"
#include "tile/sync/dependent_launch.cuh"

namespace mirage::tile {

// How a copy treats the caches: kKeep (in L2) for what other blocks read again, kStream for
// weights, which are read once, kL1 for what several lanes read.
enum class Cache { kKeep, kStream, kL1 };

// A stride known at compile time: offsets become immediates of the copies.
template <int64_t kValue>
struct Static {
  __device__ constexpr operator int64_t() const { return kValue; }
};

// The lines of a [lines, depth] tensor from the first one of this block's tile. kEvenLines: the
// tiles cover the lines exactly. kEvenDepth: the steps cover the depth exactly.
template <class T, class Stride, bool kEvenLines, bool kEvenDepth>
struct Edge {
  const T* first;
  Stride stride;
  int lines, depth;  // lines left in the tensor
};

struct Extent {
  int first_line, lines, depth;
};

template <bool kEvenLines, bool kEvenDepth, class T, class Stride>
__device__ Edge<T, Stride, kEvenLines, kEvenDepth> edge(const T* tensor, Stride stride,
                                                        Extent extent) {
  return {tensor + extent.first_line * stride, stride, extent.lines - extent.first_line,
          extent.depth};
}

template <class Step>
struct StageBuffer;  // tile/sliced_k/pipeline.cuh

// What a lane copies of a tile of tokens in every step, found before the kernel waits.
template <class Step, class T, bool kEvenDepth>
struct LaneEdge {
  const T* first;
  int64_t stride;
  int lines, depth;  // left in the tensor from there on
  int at;            // byte of a segment
};

template <class Step, bool kEvenDepth, class T>
__device__ LaneEdge<Step, T, kEvenDepth> lane_edge(const T* tensor, int64_t stride, Extent extent) {
  constexpr int kVectors16 = StageBuffer<Step>::kSegmentVectors;
  const int line = lane() / kVectors16, vec = lane() % kVectors16;
  const int first = extent.first_line + line;
  return {found_early(tensor + first * stride + vec * kLaneDepth), found_early(stride),
          found_early(extent.lines - first), extent.depth - vec * kLaneDepth,
          found_early(StageBuffer<Step>::offset(line, vec))};
}

// A [depth] tensor: one line that all lanes read.
template <bool kEvenDepth, class T>
__device__ Edge<T, Static<0>, true, kEvenDepth> depth_edge(const T* tensor, int depth) {
  return {tensor, {}, 1, depth};
}

// An optional [depth] tensor: zeros where it is absent.
template <class T>
__device__ Edge<T, Static<0>, true, false> optional_edge(const T* tensor, int depth) {
  return {tensor, {}, 1, tensor == nullptr ? 0 : depth};
}

// A policy of copies: what they bring into L2 leaves it first. Then tokens, tables and instructions
// stay there while weights and keys pass (a step of Llama-3.1-8B, 16 sequences: 4270 to 4187 us; 2
// to 4 % of attention with few sequences, or with uneven ones).
__device__ inline uint64_t read_once() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copies 16 bytes from device into shared memory asynchronously; writes zeros if not `inside`.
template <Cache kCache>
__device__ void copy_16_bytes(char* shared, const void* global, bool inside) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = inside ? kVec16Bytes : 0;  // the rest of the 16 is filled with zeros
  if constexpr (kCache == Cache::kL1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
  } else if constexpr (kCache == Cache::kStream) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
  }
}

// The same of what is read once, to an address that is no sum with a number of the whole warp: of
// such a sum and a policy nvcc 13.0 makes an instruction that is illegal on sm_90.
__device__ inline void copy_16_bytes_once(uint32_t to, const void* global, bool inside) {
  const int bytes = inside ? kVec16Bytes : 0;
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
      "l"(global), "r"(bytes), "l"(read_once())
      : "memory");
}

// Prefetches the first lines of a step into L2, one cache line per lane and access.
template <class StageBuffer, class Edge>
__device__ void prefetch_rows(StageBuffer buffer, const Edge& edge, int lines, int k) {
  const int found = min(min(lines, buffer.prefetches), edge.lines);
  for (int line = lane(); line < found; line += kWarpLanes) {
    prefetch_l2(edge.first + line * edge.stride + k);
  }
}

// buffer.field[line, :] = tensor[first_line + line, k : k + kDepth], by all lanes together: one
// copy takes kSegmentVectors neighbouring vectors of each of a few lines.
template <Cache kCache, class StageBuffer, class Step, Dims kDims, class T, int kLines, int kChunks,
          class Stride, bool kEvenLines, bool kEvenDepth>
__device__ void copy(StageBuffer buffer, Fragment<kDims, T, kLines, kChunks> Step::* field,
                     const Edge<T, Stride, kEvenLines, kEvenDepth>& edge, int k) {
  if (buffer.prefetches > 0) {
    if (kCache == Cache::kStream) prefetch_rows(buffer, edge, kLines * kLineTile, k);
    return;
  }
  constexpr int kVectors16 = StageBuffer::kSegmentVectors, kLinesPerCopy = kWarpLanes / kVectors16;
  const int first_line = lane() / kVectors16, vec = lane() % kVectors16;
  constexpr int kBytes = sizeof(T), kLaneElements = kVec16Bytes / kBytes;
  constexpr int kChunkElements = kChunkVectors * kLaneElements;
  auto first =
      reinterpret_cast<const char*>(edge.first + first_line * edge.stride) + vec * kVec16Bytes;
  asm(""
      : "+l"(first));  // keeps one base address: nvcc recomputes it per line otherwise, 1.5 times
                       // the code
  first += k * kBytes;
  static_assert(kLinesPerCopy % 2 == 0, "offsets of such lines apart are sums");
  const uint32_t lanes_own = static_cast<uint32_t>(__cvta_generic_to_shared(buffer.at)) +
                             StageBuffer::offset(first_line, vec);
  // Shuffled, so that nvcc takes the address for a lane's own.
  const uint32_t own = kCache == Cache::kStream ? __shfl_sync(~0u, lanes_own, lane()) : 0;
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
#pragma unroll
    for (int c = 0; c < kChunks; c += StageBuffer::kSegmentChunks) {
      char* to = buffer.segment(field, i, c);
#pragma unroll
      for (int n = 0; n < kLineTile; n += kLinesPerCopy) {
        const int line = i * kLineTile + n;
        const bool inside =
            (kEvenLines || line + first_line < edge.lines) &&
            (kEvenDepth || k + c * kChunkElements + vec * kLaneElements < edge.depth);
        const auto* from = first + (line * edge.stride + c * kChunkElements) * kBytes;
        if constexpr (kCache == Cache::kStream) {
          const int at = static_cast<int>(to - buffer.at) + StageBuffer::offset(n, 0);
          copy_16_bytes_once(own + at, from, inside);
        } else {
          copy_16_bytes<kCache>(to + StageBuffer::offset(n + first_line, vec), from, inside);
        }
      }
    }
  }
}

// The same of tokens.
template <Cache kCache, class Step, Dims kDims, class T, int kLines, int kChunks, bool kEvenDepth>
__device__ void copy(StageBuffer<Step> buffer, Fragment<kDims, T, kLines, kChunks> Step::* field,
                     const LaneEdge<Step, T, kEvenDepth>& edge, int k) {
  if (buffer.prefetches > 0) return;
  using Buffer = StageBuffer<Step>;
  constexpr int kLinesPerCopy = kWarpLanes / Buffer::kSegmentVectors;
  static_assert(kLinesPerCopy % 2 == 0, "offsets of such lines apart are sums");
  constexpr int kSegments = kChunks / Buffer::kSegmentChunks;
  unrolled<kLines, kSegments, kLineTile / kLinesPerCopy>([&](int i, int s, int n) {
    const int c = s * Buffer::kSegmentChunks, line = i * kLineTile + n * kLinesPerCopy;
    const bool inside = line < edge.lines && (kEvenDepth || k + c * kChunkDepth < edge.depth);
    char* const to = buffer.segment(field, i, c) + Buffer::offset(n * kLinesPerCopy, 0);
    copy_16_bytes<kCache>(to + edge.at, edge.first + k + line * edge.stride + c * kChunkDepth,
                          inside);
  });
}

// buffer.field[:] = tensor[k : k + kDepth]. Eight lanes copy the same vector, each for itself,
// through L1, which merges the accesses (14.8 us; 16.8 with copies that bypass L1).
template <Cache, class StageBuffer, class Step, class T, int kChunks, bool kEvenDepth>
__device__ void copy(StageBuffer buffer, Fragment<Dims::kDepth, T, 1, kChunks> Step::* field,
                     const Edge<T, Static<0>, true, kEvenDepth>& edge, int k) {
  if (buffer.prefetches > 0) return;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int from = k + c * kChunkDepth + lane_quarter() * kLaneDepth;
    const int vec = c % StageBuffer::kSegmentChunks * kChunkVectors + lane_quarter();
    copy_16_bytes<Cache::kL1>(buffer.segment(field, 0, c) + StageBuffer::offset(lane_line(), vec),
                              edge.first + from, kEvenDepth || from < edge.depth);
  }
}

}  // namespace mirage::tile
