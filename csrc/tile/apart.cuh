// Totals that every block needs, computed apart: once, by a few blocks.
//
// Every block would multiply rows that the grid does not cut, and read all of them from L2. Where
// multiprocessors are left, the first blocks of the grid, the makers, share these rows and the
// tokens among them, with all of the depth; they wait for nobody. The other blocks, the users, have
// none of it. While their warps stream, one warp more, or four, receives the totals and multiplies
// them.
//
// Four totals lie in the workspace beside a stamp that no launch before has used, 16 bytes that are
// written and read as one: whoever finds the stamp has the totals. A maker tells its stamp to every
// user, by the call's nonce, a number that memory does not hold by chance. So no maker waits until
// what it wrote can be seen, and users look at places of their own: all at one slowed down all
// (15.5 us against 13.0, 64 tokens). A user wipes out the nonces, so that a graph may be replayed.
#pragma once

#include "launch.h"
#include "tile/epilogue.cuh"
#include "tile/kept.cuh"

namespace mirage::tile {

constexpr int kReceivers = 4;  // warps of a user that receive many tokens' totals

struct alignas(16) Stamped {
  uint64_t stamp, value;
};

__device__ inline void leave(Stamped* at, Stamped given) {
  asm volatile(
      "{ .reg .b128 both;\n"
      "mov.b128 both, {%1, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], both; }" ::"l"(at),
      "l"(given.stamp), "l"(given.value)
      : "memory");
}

__device__ inline Stamped look(const Stamped* at) {
  Stamped found;
  asm volatile(
      "{ .reg .b128 both;\n"
      "ld.relaxed.gpu.global.b128 both, [%2];\n"
      "mov.b128 {%0, %1}, both; }"
      : "=l"(found.stamp), "=l"(found.value)
      : "l"(at)
      : "memory");
  return found;
}

// A barrier of a user's warps that receive.
template <int kWarps>
__device__ void sync_receivers() {
  if constexpr (kWarps > 1) {
    sync_threads<4, kWarps * kWarpLanes>();
  } else {
    __syncwarp();
  }
}

// Another one whenever a multiprocessor is asked.
__device__ inline uint64_t new_stamp() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time * 0x9e3779b97f4a7c15 ^ static_cast<uint64_t>(clock64());
}

// `Plan` says what of the program and of its knobs decides who makes what: Element, kTokens (of a
// user), kInner (rows that the grid does not cut), kMakerRows and kMakerTokens (of a maker).
template <class Plan>
class Apart {
 public:
  using T = typename Plan::Element;
  static constexpr int kQuad = sizeof(uint64_t) / sizeof(T), kQuads = Plan::kInner / kQuad;
  static constexpr int kRowTiles = (Plan::kInner + Plan::kMakerRows - 1) / Plan::kMakerRows;
  static constexpr int kMakers = Plan::kTokens / Plan::kMakerTokens * kRowTiles;
  static_assert(Plan::kInner % kQuad == 0 && Plan::kMakerRows % kQuad == 0);
  static_assert(Plan::kTokens % Plan::kMakerTokens == 0 && kMakers <= kWarpLanes);

  __device__ explicit Apart(const LaunchArgs& args)
      : tokens_(static_cast<int>(args.dims[0])), nonce_(args.nonce) {
    totals_ = static_cast<Stamped*>(args.workspace);
    told_ = totals_ + args.dims[0] * kQuads + static_cast<int64_t>(blockIdx.y) * users() * kMakers;
  }

  // Of the workspace: totals [tokens, kQuads], and what is told [tiles of tokens, users, makers].
  static int64_t bytes(int64_t tokens, int64_t users) {
    const int64_t tiles = (tokens + Plan::kTokens - 1) / Plan::kTokens;
    return (tokens * kQuads + tiles * users * kMakers) * static_cast<int64_t>(sizeof(Stamped));
  }

  __device__ static bool makes() { return blockIdx.x < kMakers; }
  __device__ static int user() { return static_cast<int>(blockIdx.x) - kMakers; }

  // A maker's tile.
  __device__ static int first_row() { return blockIdx.x % kRowTiles * Plan::kMakerRows; }
  __device__ static int first_token() {
    return static_cast<int>(blockIdx.y) * Plan::kTokens +
           static_cast<int>(blockIdx.x) / kRowTiles * Plan::kMakerTokens;
  }

  // Where a maker has its stamp, behind all else that it has in shared memory.
  static constexpr int kStampBytes = 16;
  __device__ static uint64_t& stamp(char* shared) { return *reinterpret_cast<uint64_t*>(shared); }

  // By all threads of a maker: body(element) for all elements of its tile, left with the stamp.
  template <int kThreads, class Body>
  __device__ void make(OutputTile tile, uint64_t stamp, Body body) const {
    constexpr int kOwnQuads = Plan::kMakerRows / kQuad;
    const int tokens = min(Plan::kMakerTokens, tile.tokens - tile.first_token);
#pragma unroll 1
    for (int i = threadIdx.x; i < tokens * kOwnQuads; i += kThreads) {
      const int token = i / kOwnQuads, row = i % kOwnQuads * kQuad;
      if (tile.first_row + row >= tile.rows) continue;
      alignas(uint64_t) T totals[kQuad];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) totals[j] = cast<T>(body(Element{row + j, token}));
      leave_quad(tile.first_token + token, tile.first_row + row,
                 {stamp, reinterpret_cast<const uint64_t&>(totals)});
    }
    tell<kThreads>(stamp);
  }

  // Four totals of a token, from a row on, beside the stamp.
  __device__ void leave_quad(int token, int row, Stamped quad) const {
    leave(totals_ + static_cast<int64_t>(token) * kQuads + row / kQuad, quad);
  }

  // By all threads of a maker: every user is told its stamp.
  template <int kThreads>
  __device__ void tell(uint64_t stamp) const {
    for (int i = threadIdx.x; i < users(); i += kThreads) {
      leave(told_ + i * kMakers + blockIdx.x, {nonce_, stamp});
    }
  }

  // By `warp` of kWarps of a user, each for its own tokens: kept[token, row] = the totals, as soon
  // as they are there.
  template <int kWarps = 1>
  __device__ void receive(Kept<T, Plan::kTokens, Plan::kInner> kept, int warp = 0) const {
    constexpr int kOwn = Plan::kTokens / kWarps, kAll = kOwn * kQuads;
    constexpr int kMost = (kAll + kWarpLanes - 1) / kWarpLanes;
    constexpr int kAtOnce = kMost < 16 ? kMost : 16;
    const uint64_t stamp = await_makers<kWarps>(warp);
    const int first_token = static_cast<int>(blockIdx.y) * Plan::kTokens + warp * kOwn;
    const int count = min(kOwn, tokens_ - first_token) * kQuads;
    const Stamped* const first = totals_ + static_cast<int64_t>(first_token) * kQuads;
    // All looks come before the first comparison: && keeps them apart. Without branches,
    // comparisons stood between looks and waited for them, one by one (14.9 us against 13.1).
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kAtOnce * kWarpLanes) {
      const int mine = begin + lane();
      Stamped found[kAtOnce];
      uint64_t wanted[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        wanted[j] = __shfl_sync(~0u, stamp, maker_of(warp * kAll + mine + j * kWarpLanes));
      }
      bool complete;
      do {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (mine + j * kWarpLanes < count) found[j] = look(first + mine + j * kWarpLanes);
        }
        complete = true;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          complete = complete && (mine + j * kWarpLanes >= count || found[j].stamp == wanted[j]);
        }
      } while (!complete);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = mine + j * kWarpLanes;
        if (i >= count) continue;
        T* const to = kept.at(warp * kOwn + i / kQuads, i % kQuads * kQuad);
        *reinterpret_cast<uint64_t*>(to) = found[j].value;
      }
    }
  }

 private:
  __device__ static int users() { return static_cast<int>(gridDim.x) - kMakers; }

  __device__ static int maker_of(int quad) {
    const int token_tile = quad / kQuads / Plan::kMakerTokens;
    return (token_tile * kRowTiles + quad % kQuads * kQuad / Plan::kMakerRows) % kWarpLanes;
  }

  // Lane i returns with the stamp of maker i. Looking without a pause slowed all down (10.1 us
  // against 9.95, 16 tokens), looking twice as often the more (10.4).
  static constexpr unsigned kPause = 250;  // nanoseconds
  template <int kWarps>
  __device__ uint64_t await_makers(int warp) const {
    Stamped told{};
    Stamped* const at = told_ + user() * kMakers + lane();
    if (lane() < kMakers) {
      for (told = look(at); told.stamp != nonce_; told = look(at)) __nanosleep(kPause);
    }
    __syncwarp();
    sync_receivers<kWarps>();  // all have seen it
    if (warp == 0 && lane() < kMakers) leave(at, {});
    __syncwarp();
    return told.value;
  }

  Stamped *totals_, *told_;
  int tokens_;
  uint64_t nonce_;
};

// A barrier of the warps that stream; one that the warps beside them come to, too.
template <int kWarps>
__device__ void sync_streams() {
  sync_threads<2, kWarps * kWarpLanes>();
}
template <int kWarps, int kReceivers = 1>
__device__ void sync_received() {
  sync_threads<3, (kWarps + kReceivers) * kWarpLanes>();
}

}  // namespace mirage::tile
