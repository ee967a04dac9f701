// Sums of products, dealt out to those who finish them.
//
// The blocks of a cluster and the warpgroups of a block may each have a part of the depth, and so
// sums of the same elements. Everyone finishes some octets of them: its own stay in registers,
// those of others go to their places in shared memory. What goes to the other block is counted by
// its barrier, so nobody waits for a block as a whole. Sums are added in one order on every run.
#pragma once

#include "tile/cluster.cuh"
#include "tile/epilogue.cuh"
#include "tile/wgmma.cuh"

namespace mirage::tile {

// A block that asks for more than half of a multiprocessor's shared memory is alone there: of two
// that shared one, others would do nothing.
constexpr int kAloneBytes = 116 * 1024;

// Weights of the first steps that come before the kernel before has ended: into shared memory,
// where that is promised, else into L2. More of them keep the first tokens waiting: 32 KB took 10.9
// us, 64 KB 11.8, promised (4096 -> 4096, 64 tokens); into L2 11.0, and 11.3 with 48 KB or none.
constexpr int kAheadBytes = 32 * 1024;

// Steps that this makes, rounded: at least one, at most all that the ring has places for.
__host__ __device__ constexpr int steps_ahead(int step_bytes, int stages) {
  const int steps = (kAheadBytes + step_bytes / 2) / step_bytes;
  return steps < 1 ? 1 : steps < stages ? steps : stages;
}

// What a lane finishes.
template <int kTiles, int kOwn>
struct OwnSums {
  float at[kTiles][kOwn][4];
};

// kTurns of kGroups warpgroups have sums of the same elements: kTiles x kOctets times what a lane
// has of eight lines of the N side.
template <int kBlocks_, int kGroups_, int kTurns_, int kTiles_, int kOctets_>
struct Dealt {
  static constexpr int kBlocks = kBlocks_, kGroups = kGroups_, kTurns = kTurns_;
  static constexpr int kTiles = kTiles_, kOctets = kOctets_;
  static constexpr int kOwn = kOctets / (kBlocks * kTurns);  // octets that a warpgroup finishes
  static_assert(kOctets % (kBlocks * kTurns) == 0 && kTurns <= 2 && kBlocks <= 2);
  static constexpr int kLanes = kGroupWarps * kWarpLanes;
  static constexpr int kPlace = kTiles * kOwn * kLanes;  // float4 of one for another
  static constexpr int kPlaceBytes = kPlace * static_cast<int>(sizeof(float4));
  static constexpr int kIncomingBytes = (kBlocks - 1) * kGroups * kTurns * kPlaceBytes;
  static constexpr int kLocalBytes = (kTurns - 1) * kGroups * kPlaceBytes;

  __device__ static int group() { return warp_index() / kGroupWarps; }
  __device__ static int turn() { return group() % kTurns; }
  // Where sums of a turn lie for another one, sent by the other block or left in this one.
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

template <class Dealt>
using Own = OwnSums<Dealt::kTiles, Dealt::kOwn>;

// Shared memory in which a product's sums meet: those that the other block sends, and the block's.
struct Places {
  char *incoming, *local;
};

// Leaves the sums of others where these will find them, returns those that this lane finishes.
template <class Dealt>
__device__ Own<Dealt> deal(const float (&sums)[Dealt::kTiles][Dealt::kOctets][4], Places places,
                           int rank, CopyBarrier& met) {
  Own<Dealt> own;
  const int turn = Dealt::turn(), other = 1 - rank;
#pragma unroll
  for (int r = 0; r < Dealt::kTiles; ++r) {
#pragma unroll
    for (int o = 0; o < Dealt::kOctets; ++o) {
      const int owner = o / Dealt::kOwn, to = owner % Dealt::kTurns;
      const int place = (r * Dealt::kOwn + o % Dealt::kOwn) * Dealt::kLanes;
      const float (&part)[4] = sums[r][o];
      const float4 value = make_float4(part[0], part[1], part[2], part[3]);
      if (Dealt::kBlocks > 1 && owner / Dealt::kTurns != rank) {
        const float4* const there = Dealt::incoming(places.incoming, turn, to) + place;
        push(in_block(there, other), value, in_block(&met, other));
      } else if (to == turn) {
#pragma unroll
        for (int i = 0; i < 4; ++i) own.at[r][o % Dealt::kOwn][i] = part[i];
      } else {
        Dealt::local(places.local, to)[place] = value;
      }
    }
  }
  return own;
}

// Behind a barrier, and when all is there that the other block sends: adds it up.
template <class Dealt>
__device__ void add_dealt(Own<Dealt>& own, Places places) {
  const auto add = [&](const float4* from) {
#pragma unroll
    for (int i = 0; i < Dealt::kTiles * Dealt::kOwn; ++i) {
      const float4 part = from[i * Dealt::kLanes];
      float (&sums)[4] = own.at[i / Dealt::kOwn][i % Dealt::kOwn];
      sums[0] += part.x;
      sums[1] += part.y;
      sums[2] += part.z;
      sums[3] += part.w;
    }
  };
  if (Dealt::kTurns > 1) add(Dealt::local(places.local, Dealt::turn()));
#pragma unroll
  for (int from = 0; Dealt::kBlocks > 1 && from < Dealt::kTurns; ++from) {
    add(Dealt::incoming(places.incoming, from, Dealt::turn()));
  }
}

// An element, and where its sums are in the thread.
struct DealtElement : Element {
  int tile, octet, i;
  float* result;
};

template <int kTiles, int kOwn>
__device__ float sum_over_warps(const OwnSums<kTiles, kOwn>& own, DealtElement e) {
  return own.at[e.tile][e.octet][e.i];
}

template <class T>
__device__ void store(T*, OutputTile, DealtElement e, float value) {
  *e.result = value;  // what calls for elements stores lines
}

// out[token, row : row + 8] = eight results, as far as they are inside the tensor
template <class T>
__device__ void store_octet(T* out, OutputTile tile, Element e, const char* from) {
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
