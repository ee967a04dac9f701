// Reduce-scatter of accumulators over the blocks of a cluster by their M side.
//
// A warp has sums of 16 lines of every 64, so each of its 16 lines belongs to one block: warps
// store all that they have there, by DSMEM, in their own block too. No register depends on a
// block's rank, and any number of groups of eight of the N side is shared evenly. Every run adds in
// the same order.
#pragma once

#include "tile/reduce/scatter.cuh"

namespace mirage::tile {

// Warpgroups have 64 of kLines lines each, and kOctets groups of eight of the N side; so many have
// sums of the same elements and take turns.
template <int kBlocks_, int kGroups_, int kTurns_, int kOctets_, int kLines_>
struct ScatterTokens {
  static constexpr int kBlocks = kBlocks_, kTurns = kTurns_, kTiles = 1, kVectors16 = kOctets_;
  static constexpr int kWarps = kGroups_ * kGroupWarps, kParts = kBlocks * kTurns;
  // Tiles of 16 lines that a block finishes, and the warps that finish one.
  static constexpr int kLineTiles = kWarps / kTurns / kBlocks, kSharing = kWarps / kLineTiles;
  static_assert(kWarps % (kTurns * kBlocks) == 0);
  static constexpr int kOwn = (kVectors16 + kSharing - 1) / kSharing;
  static constexpr int kPlace = kVectors16 * kWarpLanes;  // float4 of 16 lines
  static constexpr int kPlaceBytes = kPlace * static_cast<int>(sizeof(float4));
  static constexpr int kIncomingBytes = kLineTiles * kParts * kPlaceBytes, kLocalBytes = 0;

  __device__ static int group() { return warp_index() / kGroupWarps; }
  __device__ static int turn() { return group() % kTurns; }
  // The tile of 16 lines that a warp has sums of.
  __device__ static int tile() {
    return group() / kTurns * kGroupWarps + warp_index() % kGroupWarps;
  }
  // What it finishes: groups of eight of the N side, and lines.
  __device__ static int first_vector() { return warp_index() / kLineTiles * kOwn; }
  __device__ static int first_line(int rank) {
    return (rank * kLineTiles + warp_index() % kLineTiles) * kRowTile;
  }
  // Bytes that arrive: warps without lines send nothing.
  __device__ static int sent_bytes(int rank) {
    const int tiles = (kLines_ + kRowTile - 1) / kRowTile - rank * kLineTiles;
    return min(max(tiles, 0), kLineTiles) * kParts * kPlaceBytes;
  }
  __device__ static float4* incoming(char* area, int tile, int part) {
    return reinterpret_cast<float4*>(area) + (tile * kParts + part) * kPlace + lane();
  }
};

// Stores all sums of a warp for the block that finishes them.
template <int kBlocks, int kGroups, int kTurns, int kOctets, int kLines>
__device__ auto scatter(ScatterTokens<kBlocks, kGroups, kTurns, kOctets, kLines>,
                        const float (&sums)[kOctets][4], ReduceBuffers buffers, int rank,
                        Mbarrier& met) {
  using Scatter = ScatterTokens<kBlocks, kGroups, kTurns, kOctets, kLines>;
  const int tile = Scatter::tile(), to = tile / Scatter::kLineTiles;
  if (tile * kRowTile >= kLines) return Own<Scatter>{};
  const int part = rank * kTurns + Scatter::turn();
  const uint32_t there =
      map_to_block(Scatter::incoming(buffers.incoming, tile % Scatter::kLineTiles, part), to);
  const uint32_t barrier = map_to_block(&met, to);
  unrolled<kOctets>([&](int o) {
    constexpr int kBytes = kWarpLanes * static_cast<int>(sizeof(float4));
    store_dsmem(there + o * kBytes, packed(sums[o]), barrier);
  });
  return Own<Scatter>{};
}

// When the sums of all blocks have arrived: adds those of the elements that a lane finishes.
template <int kBlocks, int kGroups, int kTurns, int kOctets, int kLines, class OwnSums>
__device__ void add_scattered(ScatterTokens<kBlocks, kGroups, kTurns, kOctets, kLines>,
                              OwnSums& own, ReduceBuffers buffers) {
  using Scatter = ScatterTokens<kBlocks, kGroups, kTurns, kOctets, kLines>;
  const int tile = warp_index() % Scatter::kLineTiles;
  unrolled<Scatter::kParts>([&](int part) {
    const float4* const from = Scatter::incoming(buffers.incoming, tile, part);
    unrolled<Scatter::kOwn>([&](int o) {
      const int vec = min(Scatter::first_vector() + o, kOctets - 1);
      const float4 sum = from[vec * kWarpLanes];
      float (&to)[4] = own.at[0][o];
      to[0] += sum.x;
      to[1] += sum.y;
      to[2] += sum.z;
      to[3] += sum.w;
    });
  });
}

}  // namespace mirage::tile
