// The first launch of batched LoRA: products of x with the tokens' first slices.
#pragma once

#include "tile/copy/predicated.cuh"
#include "tile/epilogue.cuh"
#include "tile/grid.cuh"
#include "tile/sliced_k/pipeline.cuh"
#include "tile/sync/cluster.cuh"

namespace mirage::tile {

constexpr int kMostGrouped = 2 * kWarpLanes;  // tokens that are grouped together

// Up to eight tokens of one adapter, a byte each; unused places repeat the first token.
struct AdapterGroup {
  uint64_t tokens;  // numbers within a tile
  int adapter, count;

  __device__ int token(int place) const { return static_cast<int>(tokens >> 8 * place & 0xff); }
};

constexpr int kGroupsBytes = kMostGrouped * static_cast<int>(sizeof(AdapterGroup));

// The groups of a tile of tokens, two tokens to a lane; built by all lanes of a warp.
class Adapters {
 public:
  static constexpr int kNone = -1;

  // Of at most `most` tokens from `first_token` on.
  __device__ Adapters(const LaunchArgs& args, int first_token, int most) {
    const int64_t end = min(args.dims[0], static_cast<int64_t>(first_token) + most);
    low_.adapter = load(args, first_token + lane(), end);
    high_.adapter = load(args, first_token + lane() + kWarpLanes, end);
    chosen_ = both(low_.adapter != kNone, high_.adapter != kNone);
    low_.tokens = high_.tokens = chosen_;
#pragma unroll 1
    for (int bit = 0; args.slices >> bit > 0; ++bit) {
      const uint64_t set = both(low_.adapter >> bit & 1, high_.adapter >> bit & 1);
      low_.tokens &= low_.adapter >> bit & 1 ? set : ~set;
      high_.tokens &= high_.adapter >> bit & 1 ? set : ~set;
    }
    begins_ = both(begins(low_, lane()), begins(high_, lane() + kWarpLanes));
  }

  __device__ int count() const { return __popcll(begins_); }
  __device__ bool has(int token) const { return chosen_ >> token & 1; }

  // groups[number] = the group, for all of them.
  __device__ void list(AdapterGroup* groups) const {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int token = lane() + half * kWarpLanes;
      if (begins_ >> token & 1) groups[number(token)] = group(half == 0 ? low_ : high_, token);
    }
    __syncwarp();
  }

 private:
  // A token's adapter, and the set of tokens with the same one; any set if it has none.
  struct Alike {
    uint64_t tokens;
    int adapter;
  };

  __device__ static uint64_t before(int token) { return (uint64_t{1} << token) - 1; }
  __device__ static uint64_t both(bool low, bool high) {
    return static_cast<uint64_t>(__ballot_sync(~0u, high)) << kWarpLanes | __ballot_sync(~0u, low);
  }
  __device__ static bool begins(const Alike& alike, int token) {
    return alike.adapter != kNone && __popcll(alike.tokens & before(token)) % kTokenTile == 0;
  }
  __device__ int number(int token) const { return __popcll(begins_ & before(token)); }

  // Ids outside the stack mean none: nothing outside is read.
  __device__ static int load(const LaunchArgs& args, int token, int64_t end) {
    if (token >= end) return kNone;
    const int64_t id = args.wide_ids ? static_cast<const int64_t*>(args.slice_ids)[token]
                                     : static_cast<const int32_t*>(args.slice_ids)[token];
    return id >= 0 && id < args.slices ? static_cast<int>(id) : kNone;
  }

  // The group that begins at a token.
  __device__ static AdapterGroup group(const Alike& alike, int token) {
    uint64_t left = alike.tokens & ~before(token), tokens = 0;
    const int count = min(__popcll(left), kTokenTile);
    unrolled<kTokenTile>([&](int place) {
      const int next = place < count ? __ffsll(static_cast<long long>(left)) - 1 : token;
      tokens |= static_cast<uint64_t>(next) << 8 * place;
      left &= left - 1;
    });
    return {tokens, alike.adapter, count};
  }

  Alike low_, high_;
  uint64_t chosen_, begins_;  // one bit per token: has an adapter, begins a group
};

// The line of x that a lane reads of a group.
template <class T, bool kEvenDepth>
struct GatheredLine {
  const T* line;
  bool inside;
  int depth;
};

template <bool kEvenDepth, class T>
__device__ GatheredLine<T, kEvenDepth> gathered_line(const T* tensor, int64_t stride,
                                                     AdapterGroup group, int first_token,
                                                     int depth) {
  const int place = lane_line();
  return {tensor + (first_token + group.token(place)) * stride, place < group.count, depth};
}

// Loads 16 bytes that nobody writes while the kernel runs; zeros if not `inside`.
template <class T>
__device__ Vec16<T> load_16_bytes(const T* at, bool inside) {
  Vec16<T> found{};
  if (inside) {
    auto& words = reinterpret_cast<uint4&>(found);
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(at));
  }
  return found;
}

// fragment[line, :] = tensor[first_line + line, k : k + kDepth], straight into registers.
template <class T, int kLines, int kChunks, class Stride, bool kEvenLines, bool kEvenDepth>
__device__ void load(Fragment<Dims::kRowsDepth, T, kLines, kChunks>& fragment,
                     const Edge<T, Stride, kEvenLines, kEvenDepth>& edge, int k) {
  unrolled<kLines>([&](int i) {
    const int line = i * kLineTile + lane_line();
    unrolled<kChunks>([&](int c) {
      const int from = k + c * kChunkDepth + lane_quarter() * kLaneDepth;
      const bool inside = (kEvenLines || line < edge.lines) && (kEvenDepth || from < edge.depth);
      fragment.at[i][c] = load_16_bytes(edge.first + line * edge.stride + from, inside);
    });
  });
}

template <class T, int kChunks, bool kEvenDepth>
__device__ void load(Fragment<Dims::kTokensDepth, T, 1, kChunks>& fragment,
                     const GatheredLine<T, kEvenDepth>& tokens, int k) {
  unrolled<kChunks>([&](int c) {
    const int from = k + c * kChunkDepth + lane_quarter() * kLaneDepth;
    const bool inside = tokens.inside && (kEvenDepth || from < tokens.depth);
    fragment.at[0][c] = load_16_bytes(tokens.line + from, inside);
  });
}

// compute(load(k)) for k in first, first + stride, ... < last, with the loads of kAtOnce steps in
// flight. A warp has few steps: stages in shared memory would only keep other blocks off the
// multiprocessor.
template <int kAtOnce, class Step, class Load, class Compute>
__device__ void load_and_compute(Steps steps, Load load, Compute compute) {
#pragma unroll 1
  for (int k = steps.first; k < steps.last; k += kAtOnce * steps.stride) {
    Step loaded[kAtOnce];
    unrolled<kAtOnce>([&](int s) {
      if (k + s * steps.stride < steps.last) load(loaded[s], k + s * steps.stride);
    });
    unrolled<kAtOnce>([&](int s) {
      if (k + s * steps.stride < steps.last) compute(loaded[s]);
    });
  }
}

// What a cluster computes at a time: some rows of a group's slice.
struct SliceTile {
  AdapterGroup group;
  int first_token, first_row;
  int turn;  // of this cluster, from 0 on
};

// Blocks of the first launch. `Plan` has Element, kInner (rows of a slice), kRows (of a cluster),
// kWarps, and kBlocks (of a cluster, that split the depth).
template <class Plan>
struct AdapterProducers {
  using T = typename Plan::Element;
  static constexpr int kRows = Plan::kRows, kWarps = Plan::kWarps, kBlocks = Plan::kBlocks;
  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kRowTiles = (Plan::kInner + kRows - 1) / kRows;
  // More clusters would mostly find nothing to do and delay the second launch (64 tokens without
  // adapters, rank 64: 16.6 us against 14.1). With half as many, 16 adapters take two rounds (16
  // tokens: 18.9 us against 16.9).
  static constexpr int kMostClusters = 64;
  static_assert(kBlocks > 1 && kRows % 4 == 0);

  // One cluster per tile of rows and possible group; above kMostClusters they loop.
  static Grid grid(int64_t tokens, int64_t slices, int shared_bytes) {
    const int64_t most = tokens < kMostGrouped ? tokens : kMostGrouped;
    const int64_t full = (most + (kTokenTile - 1) * slices) / kTokenTile;
    const int64_t tiles = (most < full ? most : full) * kRowTiles;
    const int64_t clusters = tiles < kMostClusters ? tiles : kMostClusters;
    return {(clusters > 0 ? clusters : 1) * kBlocks, ceil_div(tokens, kMostGrouped), kThreads,
            shared_bytes, kBlocks};
  }

  // body(args, shared, tile) for all tiles of this cluster; `shared` begins with the groups.
  template <class Body>
  __device__ static void for_each_tile(const LaunchArgs& args, char* shared, Body body) {
    const int first_token = static_cast<int>(blockIdx.y) * kMostGrouped;
    auto* const groups = reinterpret_cast<AdapterGroup*>(shared);
    const Adapters adapters(args, first_token, kMostGrouped);
    if (warp_index() == 0) adapters.list(groups);
    const int count = adapters.count() * kRowTiles;
    const int clusters = static_cast<int>(gridDim.x) / kBlocks;
    __syncthreads();
    int turn = 0;
#pragma unroll 1
    for (int i = static_cast<int>(blockIdx.x) / kBlocks; i < count; i += clusters) {
      const int first_row = i % kRowTiles * kRows;
      body(args, shared, SliceTile{groups[i / kRowTiles], first_token, first_row, turn++});
    }
  }

  // The warp's number in the cluster; all warps split the depth.
  __device__ static int warp() { return cluster_rank() * kWarps + warp_index(); }

  // Where the blocks' sums are reduced, in the first block. Sums may arrive early, so this memory
  // has no other use.
  using Partials = AccumPartials<kRows, kTokenTile, kBlocks>;
  static constexpr int kBytes = Partials::kBytes + static_cast<int>(sizeof(Mbarrier));
  __device__ static Mbarrier& arrived(char* shared) {
    return *reinterpret_cast<Mbarrier*>(shared + Partials::kBytes);
  }
};

// At the start of a round: the first block expects the others' bytes. All have read the previous
// round.
template <class Producers>
__device__ void begin_reduction(char* shared, int turn) {
  if (threadIdx.x == 0 && cluster_rank() == 0) {
    Mbarrier& arrived = Producers::arrived(shared);
    if (turn == 0) {
      init(arrived, 1);
      fence_init();
    }
    expect(arrived, (Producers::kBlocks - 1) * Producers::kRows * kTokenTile * sizeof(float));
  }
  __syncwarp();
  arrive_cluster();
}

// After a barrier of the block: sends its sums to the cluster's first block, which reduces all.
template <class Producers>
__device__ typename Producers::Partials reduce_blocks(
    char* shared, AccumPartials<Producers::kRows, kTokenTile, Producers::kWarps> parts, int turn) {
  using Partials = typename Producers::Partials;
  constexpr int kQuads = Producers::kRows / 4;
  const int rank = cluster_rank();
  wait_cluster();  // the barrier is there
  float* const mine = reinterpret_cast<float*>(shared) + rank * kTokenTile * Partials::kPitch;
#pragma unroll 1
  for (int i = threadIdx.x; i < kTokenTile * kQuads; i += Producers::kThreads) {
    const int token = i / kQuads, row = i % kQuads * 4;
    float4 sums;
    sums.x = sum_over_warps(parts, Element{row, token});
    sums.y = sum_over_warps(parts, Element{row + 1, token});
    sums.z = sum_over_warps(parts, Element{row + 2, token});
    sums.w = sum_over_warps(parts, Element{row + 3, token});
    float* const to = mine + token * Partials::kPitch + row;
    if (rank == 0) {
      *reinterpret_cast<float4*>(to) = sums;
    } else {
      store_dsmem(map_to_block(to, 0), sums, map_to_block(&Producers::arrived(shared), 0));
    }
  }
  if (rank == 0) {
    __syncthreads();
    wait_for_dsmem_stores(Producers::arrived(shared), turn % 2);
  }
  return Partials::in(shared);
}

// By all threads of the cluster's first block: stores body(element) for the group's tokens.
template <class Producers, class Body>
__device__ void publish_inner(void* workspace, OutputTile tile, AdapterGroup group, Body body) {
  using T = typename Producers::T;
#pragma unroll 1
  for (int i = threadIdx.x; i < group.count * Producers::kRows; i += Producers::kThreads) {
    const Element e{i % Producers::kRows, i / Producers::kRows};
    if (tile.first_row + e.row >= tile.rows) continue;
    const int64_t token = tile.first_token + group.token(e.token);
    static_cast<T*>(workspace)[token * tile.rows + tile.first_row + e.row] = cast<T>(body(e));
  }
}

}  // namespace mirage::tile
