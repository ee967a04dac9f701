// Reduce-scatter of accumulators over warpgroups and over the two blocks of a cluster.
//
// Blocks and warpgroups that split the depth have partial sums of the same elements. Each finishes
// some groups of eight lines: it keeps its own part in registers and stores the rest for the
// others, in its own shared memory or, by DSMEM, in the other block's. The other block's mbarrier
// counts the bytes, so no block waits for a whole block. Every run adds in the same order.
#pragma once

#include "tile/mma/wgmma.cuh"

namespace mirage::tile {

// The sums that a lane finishes.
template <int kTiles, int kOwn>
struct OwnSums {
  float at[kTiles][kOwn][4];
};

// kTurns of the kGroups warpgroups have sums of the same elements: a lane has kTiles x kVectors16
// groups of eight lines of the N side. Of the M side kLines are used; a warp has 16 of every 64.
template <int kBlocks_, int kGroups_, int kTurns_, int kTiles_, int kOctets_, int kLines_>
struct ReduceScatter {
  static constexpr int kBlocks = kBlocks_, kGroups = kGroups_, kTurns = kTurns_;
  static constexpr int kTiles = kTiles_, kVectors16 = kOctets_, kLines = kLines_;
  static constexpr int kOwn =
      kVectors16 / (kBlocks * kTurns);  // groups of eight lines that a warpgroup finishes
  static_assert(kVectors16 % (kBlocks * kTurns) == 0 && kTurns <= 2 && kBlocks <= 2);
  static constexpr int kLanes = kGroupWarps * kWarpLanes;
  static constexpr int kPlace =
      kTiles * kOwn * kLanes;  // float4 that one warpgroup stores for another
  static constexpr int kPlaceBytes = kPlace * static_cast<int>(sizeof(float4));
  static constexpr int kIncomingBytes = (kBlocks - 1) * kGroups * kTurns * kPlaceBytes;
  static constexpr int kLocalBytes = (kTurns - 1) * kGroups * kPlaceBytes;
  // Bytes that arrive. Sending 8 KB between blocks takes 0.3 us, so warps without lines send
  // nothing.
  static constexpr int kSendingWarps = (kLines + kRowTile - 1) / kRowTile;  // of all tiles
  static constexpr int kSentBytes = kIncomingBytes / (kTiles * kGroupWarps) * kSendingWarps;
  static_assert(kSendingWarps <= kTiles * kGroupWarps);
  __device__ static int sent_bytes(int) { return kSentBytes; }

  __device__ static bool sends(int tile) {
    return tile * kGroupRows + warp_index() % kGroupWarps * kRowTile < kLines;
  }
  __device__ static int group() { return warp_index() / kGroupWarps; }
  __device__ static int turn() { return group() % kTurns; }
  // Of what a warp finishes: its groups of eight lines of the N side, and lines of the M side.
  __device__ static int first_vector() { return (kGroups > kTurns ? turn() : group()) * kOwn; }
  __device__ static int first_line(int) {
    const int first = kGroups > kTurns ? group() / kTurns * kGroupRows : 0;
    return first + warp_index() % kGroupWarps * kRowTile;
  }
  // Where partial sums of one turn for another lie: sent by the other block, or stored in this one.
  __device__ static const float4* incoming(const char* area, int from, int to) {
    const int column = group() / kTurns;
    return reinterpret_cast<const float4*>(area) +
           ((column * kTurns + from) * kTurns + to) * kPlace + threadIdx.x % kLanes;
  }
  __device__ static float4* local(char* area, int to) {
    const int column = group() / kTurns;
    return reinterpret_cast<float4*>(area) + (column * kTurns + to) * kPlace + threadIdx.x % kLanes;
  }
};

template <class ReduceScatter>
using Own = OwnSums<ReduceScatter::kTiles, ReduceScatter::kOwn>;

// Shared memory of one product's reduction: partial sums from the other block, and from this one.
struct ReduceBuffers {
  char *incoming, *local;
};

// to[:] = second ? b : a, without a branch
__device__ inline void select(float (&to)[4], bool second, const float (&a)[4],
                              const float (&b)[4]) {
  unrolled<4>([&](int i) { to[i] = second ? b[i] : a[i]; });
}
__device__ inline float4 packed(const float (&v)[4]) { return make_float4(v[0], v[1], v[2], v[3]); }

// Sends the other block the sums that it finishes, the second half of the groups or the first.
template <class ReduceScatter>
__device__ void send(const float (&sums)[ReduceScatter::kTiles][ReduceScatter::kVectors16][4],
                     char* incoming, int rank, Mbarrier& met) {
  constexpr int kHalf = ReduceScatter::kVectors16 / 2;
  const uint32_t there =
      map_to_block(ReduceScatter::incoming(incoming, ReduceScatter::turn(), 0), 1 - rank);
  const uint32_t barrier = map_to_block(&met, 1 - rank);
  unrolled<ReduceScatter::kTiles>([&](int r) {
    if (!ReduceScatter::sends(r)) return;
    unrolled<kHalf>([&](int o) {
      const int to = o / ReduceScatter::kOwn,
                vec = r * ReduceScatter::kOwn + o % ReduceScatter::kOwn;
      const int place = to * ReduceScatter::kPlace + vec * ReduceScatter::kLanes;
      float part[4];
      select(part, rank != 0, sums[r][kHalf + o], sums[r][o]);
      store_dsmem(there + place * static_cast<int>(sizeof(float4)), packed(part), barrier);
    });
  });
}

// Stores the partial sums that others finish and returns those that this lane finishes. Selects
// avoid branches: with branches sending took 0.43 us, not 0.16.
template <class ReduceScatter>
__device__ Own<ReduceScatter> scatter(
    const float (&sums)[ReduceScatter::kTiles][ReduceScatter::kVectors16][4], ReduceBuffers buffers,
    int rank, Mbarrier& met) {
  constexpr int kHalf = ReduceScatter::kVectors16 / ReduceScatter::kBlocks,
                kLast = ReduceScatter::kTurns - 1;
  if constexpr (ReduceScatter::kBlocks > 1) send<ReduceScatter>(sums, buffers.incoming, rank, met);
  const bool second = ReduceScatter::kBlocks > 1 && rank != 0, later = ReduceScatter::turn() != 0;
  Own<ReduceScatter> own;
  unrolled<ReduceScatter::kTiles, ReduceScatter::kOwn>([&](int r, int o) {
    float mine[ReduceScatter::kTurns][4], others[4];
    unrolled<ReduceScatter::kTurns>([&](int turn) {
      const int vec = turn * ReduceScatter::kOwn + o;
      select(mine[turn], second, sums[r][vec], sums[r][(vec + kHalf) % ReduceScatter::kVectors16]);
    });
    select(own.at[r][o], later, mine[0], mine[kLast]);
    if (ReduceScatter::kTurns == 1) return;
    select(others, later, mine[kLast], mine[0]);
    const int place = (r * ReduceScatter::kOwn + o) * ReduceScatter::kLanes;
    ReduceScatter::local(buffers.local, 1 - ReduceScatter::turn())[place] = packed(others);
  });
  return own;
}

// After a barrier, and when the other block's sums have arrived: adds them.
template <class ReduceScatter>
__device__ void add_scattered(Own<ReduceScatter>& own, ReduceBuffers buffers) {
  const auto add = [&](const float4* from) {
    unrolled<ReduceScatter::kTiles * ReduceScatter::kOwn>([&](int i) {
      const float4 part = from[i * ReduceScatter::kLanes];
      float (&sums)[4] = own.at[i / ReduceScatter::kOwn][i % ReduceScatter::kOwn];
      sums[0] += part.x;
      sums[1] += part.y;
      sums[2] += part.z;
      sums[3] += part.w;
    });
  };
  if (ReduceScatter::kTurns > 1) add(ReduceScatter::local(buffers.local, ReduceScatter::turn()));
#pragma unroll
  for (int from = 0; ReduceScatter::kBlocks > 1 && from < ReduceScatter::kTurns; ++from) {
    add(ReduceScatter::incoming(buffers.incoming, from, ReduceScatter::turn()));
  }
}

// An element, and where its sum is in the thread's registers.
struct OwnedElement : Element {
  int tile, vec, i;
  float* result;
};

template <int kTiles, int kOwn>
__device__ float sum_over_warps(const OwnSums<kTiles, kOwn>& own, OwnedElement e) {
  return own.at[e.tile][e.vec][e.i];
}

// Per-token sums of all parts of the depth.
template <int kParts, int kTokens>
struct TokenParts {
  const float* at;
};

template <int kParts, int kTokens>
__device__ float sum_over_warps(TokenParts<kParts, kTokens> parts, Element e) {
  float sum = parts.at[e.token];
#pragma unroll
  for (int p = 1; p < kParts; ++p) sum += parts.at[p * kTokens + e.token];
  return sum;
}

template <class T>
__device__ void store(T*, OutputTile, OwnedElement e, float value) {
  *e.result = value;  // for_each_owned stores whole lines later
}

// Converts 8 x 16 sums and stores them as two 8 x 8 matrices by stmatrix; kTransposed: tokens are
// the fast dim of the sums.
template <bool kTransposed, class T>
__device__ void store_matrices(const char* to, const float (&sums)[4]) {
  const auto low = from_floats<T>(make_float2(sums[0], sums[1]));
  const auto high = from_floats<T>(make_float2(sums[2], sums[3]));
  if constexpr (kTransposed) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(to)),
        "r"(bits(low)), "r"(bits(high))
        : "memory");
  } else {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(shared_address(to)),
        "r"(bits(low)), "r"(bits(high))
        : "memory");
  }
}

// out[token, row : row + 8] = eight results, as far as they are inside the tensor
template <class T>
__device__ void store_16_bytes(T* out, OutputTile tile, Element e, const char* from) {
  const int64_t token = tile.first_token + e.token;
  const int row = tile.first_row + e.row;
  T* const to = out + token * tile.rows + row;
  if (tile.rows % kLaneDepth == 0) {
    if (row < tile.rows) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  } else {
    for (int r = 0; r < min(kLaneDepth, tile.rows - row); ++r) {
      to[r] = reinterpret_cast<const T*>(from)[r];
    }
  }
}

}  // namespace mirage::tile
