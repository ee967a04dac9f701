// Edges from device memory into fragments: predicated asynchronous 16-byte copies.
//
// Lines past the tensor's last and k past its depth read as zero and touch no memory. Pointers must
// be aligned to 16 bytes; depth and strides must be multiples of 8 elements.
#pragma once

#include "tile/dependent.cuh"
#include "tile/fragments.cuh"

namespace mirage::tile {

// How a copy treats the caches: kKeep in L2 for what other blocks read again, kStream for weights,
// which are read once, kL1 for what several lanes read. (A cache policy, evict_first, gained
// nothing, and nvcc 13.0 turns cp.async with a policy operand into an instruction that sm_90
// rejects as illegal.)
enum class Cache { kKeep, kStream, kL1 };

// A stride known at compile time: offsets become immediates of the copies.
template <int64_t kValue>
struct Static {
  __device__ constexpr operator int64_t() const { return kValue; }
};

// The lines of a [lines, depth] tensor from the first of this block's tile on.
// kEvenLines: the tiles cover the lines exactly. kEvenDepth: the steps cover the depth exactly.
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

// A [depth] tensor: one line that all lanes share.
template <bool kEvenDepth, class T>
__device__ Edge<T, Static<0>, true, kEvenDepth> depth_edge(const T* tensor, int depth) {
  return {tensor, {}, 1, depth};
}

// The same of a tensor that may be absent: it reads as zeros then.
template <class T>
__device__ Edge<T, Static<0>, true, false> optional_edge(const T* tensor, int depth) {
  return {tensor, {}, 1, tensor == nullptr ? 0 : depth};
}

// 16 bytes from device into shared memory, asynchronously; 16 zeros if not `inside`.
template <Cache kCache>
__device__ void copy_octet(char* shared, const void* global, bool inside) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = inside ? kOctetBytes : 0;  // the rest of the 16 is filled with zeros
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

// Brings the first lines of a step into L2, a line per lane and access.
template <class Slot, class Edge>
__device__ void find_lines(Slot slot, const Edge& edge, int lines, int k) {
  const int found = min(min(lines, slot.finds), edge.lines);
  for (int line = lane(); line < found; line += kWarpLanes) {
    find(edge.first + line * edge.stride + k);
  }
}

// slot.field[line, :] = tensor[first_line + line, k : k + kDepth], all lanes together: one copy
// takes kSegmentOctets neighbours of each of a few lines.
template <Cache kCache, class Slot, class Step, Dims kDims, class T, int kLines, int kChunks,
          class Stride, bool kEvenLines, bool kEvenDepth>
__device__ void copy(Slot slot, Fragment<kDims, T, kLines, kChunks> Step::* field,
                     const Edge<T, Stride, kEvenLines, kEvenDepth>& edge, int k) {
  if (slot.finds > 0) {
    if (kCache == Cache::kStream) find_lines(slot, edge, kLines * kLineTile, k);
    return;
  }
  constexpr int kOctets = Slot::kSegmentOctets, kLinesPerCopy = kWarpLanes / kOctets;
  const int first_line = lane() / kOctets, octet = lane() % kOctets;
  constexpr int kBytes = sizeof(T);
  auto first =
      reinterpret_cast<const char*>(edge.first + first_line * edge.stride) + octet * kOctetBytes;
  asm("" : "+l"(first));  // one sum, or each line's address is added up anew: 1.5 times the code
  first += k * kBytes;
#pragma unroll
  for (int i = 0; i < kLines; ++i) {
#pragma unroll
    for (int c = 0; c < kChunks; c += Slot::kSegmentChunks) {
      char* to = slot.segment(field, i, c);
#pragma unroll
      for (int n = 0; n < kLineTile; n += kLinesPerCopy) {
        const int line = i * kLineTile + n;
        const bool inside = (kEvenLines || line + first_line < edge.lines) &&
                            (kEvenDepth || k + c * kChunkDepth + octet * kLaneDepth < edge.depth);
        copy_octet<kCache>(to + Slot::offset(n + first_line, octet),
                           first + (line * edge.stride + c * kChunkDepth) * kBytes, inside);
      }
    }
  }
}

// slot.field[:] = tensor[k : k + kDepth]: eight lanes want the same octet, each for itself. Through
// L1, which merges them; copies that bypass L1 would fetch it eight times (measured: 14.8
// against 16.8 us).
template <Cache, class Slot, class Step, class T, int kChunks, bool kEvenDepth>
__device__ void copy(Slot slot, Fragment<Dims::kDepth, T, 1, kChunks> Step::* field,
                     const Edge<T, Static<0>, true, kEvenDepth>& edge, int k) {
  if (slot.finds > 0) return;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int from = k + c * kChunkDepth + lane_quarter() * kLaneDepth;
    const int octet = c % Slot::kSegmentChunks * kChunkOctets + lane_quarter();
    copy_octet<Cache::kL1>(slot.segment(field, 0, c) + Slot::offset(lane_line(), octet),
                           edge.first + from, kEvenDepth || from < edge.depth);
  }
}

}  // namespace mirage::tile
