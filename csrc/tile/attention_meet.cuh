// After a part: the warps of a block meet, then the blocks that share a segment.
//
// Every warp has sums relative to a peak of its own. The block that has a segment's first unit
// finishes it; it is the block's last part. The others, whose first part it is, leave what they
// have in the workspace and say so by the call's nonce, a number that memory does not hold by
// chance. The finishing block adds up in the order of the blocks, the same in every run, and wipes
// out the nonces, so that a graph may be replayed. It waits for blocks that need not wait for it.
#pragma once

#include "tile/attention_parts.cuh"
#include "tile/attention_sums.cuh"

namespace mirage::tile {

struct RowElement {
  int row, d;
};

// What a block leaves: its nonce; per row its peak and sum; the product [rows, D].
template <int kRows, int kDepth>
struct Workspace {
  static constexpr int64_t kRowFloats = kDepth + 4;  // the last four: peak, sum
  static constexpr int64_t kBlockBytes = sizeof(float4) + kRows * kRowFloats * sizeof(float);
  char* at;
  int blocks;

  __device__ uint64_t* nonce(int block) const {
    return reinterpret_cast<uint64_t*>(at + block * sizeof(float4));
  }
  __device__ float* row(int block, int row) const {
    float* const first = reinterpret_cast<float*>(at + blocks * sizeof(float4));
    return first + (static_cast<int64_t>(block) * kRows + row) * kRowFloats;
  }
  __device__ float4* sums(int block, int row_) const {
    return reinterpret_cast<float4*>(row(block, row_) + kDepth);
  }
  __device__ float4* values(int block, RowElement e) const {
    return reinterpret_cast<float4*>(row(block, e.row) + e.d);
  }
};

// Tells the block that finishes the segment; the other threads' writes were before a barrier.
__device__ inline void announce(uint64_t* at, uint64_t nonce) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(nonce) : "memory");
}

__device__ inline void await(uint64_t* at, uint64_t nonce) {
  uint64_t found = 0;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(at) : "memory");
  } while (found != nonce);
  *at = 0;
}

// A row's peak and sum, and four elements of its product, of some keys.
struct Total {
  float peak, sum;
  float values[4];

  // Relative to a peak that is not lower.
  __device__ void lower_to(float higher) {
    const float factor = fast_exp(peak - higher);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] *= factor;
    sum *= factor;
    peak = higher;
  }
};

// Adds what the blocks first to last left of four elements, kBlocks of them read at once.
template <int kBlocks, class Space>
__device__ void add_left(Total& total, Space space, int first, int last, RowElement e) {
#pragma unroll 1
  for (; first <= last; first += kBlocks) {
    float2 rows[kBlocks];
    float4 theirs[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int block = min(first + i, last);
      rows[i] = __ldcg(reinterpret_cast<const float2*>(space.sums(block, e.row)));
      theirs[i] = __ldcg(space.values(block, e));
    }
    float peak = total.peak;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) peak = fmaxf(peak, rows[i].x);
    total.lower_to(peak);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const float factor = first + i <= last ? fast_exp(rows[i].x - peak) : 0.0f;
      total.sum += rows[i].y * factor;
      total.values[0] += theirs[i].x * factor;
      total.values[1] += theirs[i].y * factor;
      total.values[2] += theirs[i].z * factor;
      total.values[3] += theirs[i].w * factor;
    }
  }
}

// The sum that a row's products are divided by.
struct Divisor {
  float inverse;
};
__device__ inline float div(float a, Divisor b) { return a * b.inverse; }

template <int kRows, int kDepth, int kWarps>
class AttentionMeeting {
 public:
  static constexpr int kThreads = kWarps * kWarpLanes;
  // Elements of a head that meet at a time, so that the room stays below 17 KB or so.
  static constexpr int kSlice = [] {
    int slice = kDepth;
    while (kWarps * kRows * (slice + 4) * 4 > 17 * 1024 && slice % (2 * kRowTile) == 0) slice /= 2;
    return slice;
  }();
  static constexpr int kPitch = kSlice + 4;
  static constexpr int kProductFloats = kWarps * kRows * kPitch;
  static constexpr int kBytes = (kProductFloats + 2 * kWarps * kRows) * 4;

  __device__ explicit AttentionMeeting(char* shared)
      : products_(reinterpret_cast<float*>(shared)),
        peaks_(products_ + kProductFloats),
        sums_(peaks_ + kWarps * kRows) {}

  // Leaves this warp's peaks and sums; afterwards `product` is relative to the block's peak.
  __device__ void meet(const RowPeaks<kRows>& peak, const RowSums<kRows>& sum,
                       ValueProduct<kDepth, kRows>& product) {
#pragma unroll
    for (int r = 0; r < kRows / kTokenTile; ++r) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float total = over_lines(sum.at[r][j], [](float a, float b) { return a + b; });
        const int at = warp_index() * kRows + r * kTokenTile + lane_quarter() * 2 + j;
        if (lane_line() == 0) {
          peaks_[at] = peak.at[r][j];
          sums_[at] = total;
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows / kTokenTile; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = r * kTokenTile + lane_quarter() * 2 + i % 2;
        const float factor = fast_exp(peak.at[r][i % 2] - block_peak(row));
#pragma unroll
        for (int d = 0; d < kDepth / kRowTile; ++d) product.at[d][r][i] *= factor;
      }
    }
  }

  // The block's own peak and sum of a row.
  __device__ float2 own(int row) const {
    const float most = block_peak(row);
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total += sums_[w * kRows + row] * fast_exp(peaks_[w * kRows + row] - most);
    }
    return make_float2(most, total);
  }

  // take(element, add_up) for the elements of the first `rows` rows, four of a row to a thread;
  // add_up(values) gives what the warps have of them.
  template <class Take>
  __device__ void for_each(const ValueProduct<kDepth, kRows>& product, int rows, Take take) {
#pragma unroll 1
    for (int slice = 0; slice < kDepth; slice += kSlice) {
      if (slice > 0) __syncthreads();
      leave(product, slice / kRowTile);
      __syncthreads();
#pragma unroll 1
      for (int i = threadIdx.x * 4; i < rows * kSlice; i += kThreads * 4) {
        const int row = static_cast<unsigned>(i) / kSlice, d = static_cast<unsigned>(i) % kSlice;
        take(RowElement{row, slice + d}, [&](float (&values)[4]) { add_up(row, d, values); });
      }
    }
  }

 private:
  __device__ void add_up(int row, int d, float (&values)[4]) const {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float* at = products_ + (w * kRows + row) * kPitch + d;
      const float4 theirs = *reinterpret_cast<const float4*>(at);
      values[0] = w == 0 ? theirs.x : values[0] + theirs.x;
      values[1] = w == 0 ? theirs.y : values[1] + theirs.y;
      values[2] = w == 0 ? theirs.z : values[2] + theirs.z;
      values[3] = w == 0 ? theirs.w : values[3] + theirs.w;
    }
  }

  __device__ float block_peak(int row) const {
    float most = peaks_[row];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) most = fmaxf(most, peaks_[w * kRows + row]);
    return most;
  }

  __device__ void leave(const ValueProduct<kDepth, kRows>& product, int first_tile) {
    float* mine = products_ + warp_index() * kRows * kPitch;
#pragma unroll
    for (int d = 0; d < kDepth / kRowTile; ++d) {
      if (d < first_tile || d >= first_tile + kSlice / kRowTile) continue;
#pragma unroll
      for (int r = 0; r < kRows / kTokenTile; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = r * kTokenTile + lane_quarter() * 2 + i % 2;
          const int at = (d - first_tile) * kRowTile + lane_line() + i / 2 * kLineTile;
          mine[row * kPitch + at] = product.at[d][r][i];
        }
      }
    }
  }

  float *products_, *peaks_, *sums_;
};

}  // namespace mirage::tile
