// After a part: the warps of a block meet, then the crews that share a segment.
//
// Every warp has sums relative to a peak of its own. The crew that has a segment's first unit
// finishes it; it is the crew's last part. The others, whose first part it is, leave what they
// have in the workspace and say so by the call's nonce, a number that memory does not hold by
// chance: each block its share of the elements, to the block of the same rank. The finishing crew
// adds up in the order of the crews, the same in every run, and wipes out the nonces, so that a
// graph may be replayed. It waits for crews that need not wait for it.
#pragma once

#include "tile/attention_crew.cuh"

namespace mirage::tile {

// What a block leaves: its nonce; its share of the quads, each with its rows' peaks and sums.
template <int kRows, int kDepth>
struct Workspace {
  static constexpr int64_t kQuadBytes = 2 * sizeof(float4);
  static constexpr int64_t kBlockBytes = sizeof(float4) + Quads<kRows, kDepth>::kMost * kQuadBytes;
  char* at;
  int blocks;
  int rank, crew;  // this block's

  // What the block of this rank in a crew left.
  __device__ uint64_t* nonce(int of) const {
    return reinterpret_cast<uint64_t*>(at + (of * crew + rank) * sizeof(float4));
  }
  __device__ float4* quad(int of, int place) const {
    char* const first = at + blocks * sizeof(float4);
    const int64_t before = static_cast<int64_t>(of * crew + rank) * Quads<kRows, kDepth>::kMost;
    return reinterpret_cast<float4*>(first + (before + place) * kQuadBytes);
  }

  // For the crew that finishes the segment: by two lanes each a half, or by one both.
  __device__ void leave(int of, int place, const Total& total, bool values, bool rows) const {
    float4* const left = quad(of, place);
    if (values) left[0] = total.values();
    if (rows) left[1] = total.rows();
  }
};

// Of one quad, what crews left in the workspace.
template <class Space>
struct LeftByCrews {
  Space space;
  int place;
  __device__ float4 values(int crew) const { return __ldcg(space.quad(crew, place)); }
  __device__ float4 rows(int crew) const { return __ldcg(space.quad(crew, place) + 1); }
};

// Tells the crew that finishes the segment; the other threads' writes were before a barrier.
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

// The sum that a row's products are divided by.
struct Divisor {
  float inverse;
};
__device__ inline float div(float a, Divisor b) { return a * b.inverse; }

// Where the warps' products meet: each in a free slot of its ring, `kRoom` bytes.
template <int kRows, int kDepth, int kWarps, int kRoom>
class AttentionMeeting {
 public:
  using Places = Quads<kRows, kDepth>;
  static constexpr int kTiles = kRows / kTokenTile;
  static constexpr int kTogether = kDepth > 128 ? 2 : kWarps < 4 ? kWarps : 4;  // of warps
  static constexpr int kRowsAt = kWarps * 16;  // after the slots' addresses
  static constexpr int kBytes = kRowsAt + kWarps * kRows * static_cast<int>(sizeof(float2));
  static_assert(kDepth * kRows * sizeof(float) <= kRoom, "a product fits into a slot");

  __device__ explicit AttentionMeeting(char* shared) : shared_(shared) {}

  // Leaves what this warp has.
  __device__ void leave(const RowPeaks<kRows>& peak, const RowSums<kRows>& sum,
                        const ValueProduct<kDepth, kRows>& product, char* slot) {
    __syncwarp();  // all lanes have read the keys that lie there
    float4* const quads = reinterpret_cast<float4*>(slot) + lane();
#pragma unroll
    for (int d = 0; d < kDepth / kRowTile; ++d) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        const float (&four)[4] = product.at[d][r];
        quads[(d * kTiles + r) * kWarpLanes] = make_float4(four[0], four[1], four[2], four[3]);
      }
    }
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      float total[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        total[j] = over_lines(sum.at[r][j], [](float a, float b) { return a + b; });
      }
      if (lane_line() == 0) {
        *rows_of(warp_index(), r * 4 + lane_quarter()) =
            make_float4(peak.at[r][0], total[0], peak.at[r][1], total[1]);
      }
    }
    if (lane() == 0) *slot_of(warp_index()) = reinterpret_cast<const float4*>(slot);
  }

  // Lanes that are neighbours share the warps' sums of a quad, as far as there are threads.
  __device__ static int lanes_of(int quads) {
    int lanes = 1;
    while (2 * lanes * quads <= kWarps * kWarpLanes && 2 * lanes <= kWarps / kTogether) lanes *= 2;
    return lanes;
  }

  // What this lane's share of the warps has of a quad; after a barrier.
  __device__ Total total(Places places, int quad, int lanes) const {
    const int warps = kWarps / lanes, first = (threadIdx.x & (lanes - 1)) * warps;
    const int last = first + warps - 1;
    Total total;
    add_left<kTogether, true>(total, Left{*this, places.pair(quad), places.place(quad)}, first,
                              last);
    return total;
  }

 private:
  struct Left {
    const AttentionMeeting& meeting;
    int pair, place;
    __device__ float4 values(int warp) const { return (*meeting.slot_of(warp))[place]; }
    __device__ float4 rows(int warp) const { return *meeting.rows_of(warp, pair); }
  };
  __device__ const float4** slot_of(int warp) const {
    return reinterpret_cast<const float4**>(shared_ + warp * 16);
  }
  __device__ float4* rows_of(int warp, int pair) const {
    return reinterpret_cast<float4*>(shared_ + kRowsAt) + warp * (kRows / 2) + pair;
  }

  char* shared_;
};

}  // namespace mirage::tile
