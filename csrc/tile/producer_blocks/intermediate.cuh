// Totals that every block needs, computed apart: once, by a few blocks.
//
// Every block would multiply rows that the grid does not cut, and read all of them from L2. Where
// multiprocessors are left, the first blocks of the grid, the makers, share these rows and the
// tokens among them, with all of the depth; they wait for nobody. The other blocks, the users, have
// none of it. While their warps stream, one warp more, or four, receives the totals and multiplies
// them.
//
// Four totals lie in the workspace beside a tag that no launch before has used, 16 bytes that are
// written and read as one: whoever finds the tag has the totals. A maker tells its tag to every
// user, by the call's nonce, a number that memory does not hold by chance. So no maker waits until
// what it wrote can be seen, and users look at places of their own: all at one slowed down all
// (15.5 us against 13.0, 64 tokens). A user wipes out the nonces, so that a graph may be replayed.
#pragma once

#include "launch.h"
#include "tile/epilogue.cuh"
#include "tile/mma/resident.cuh"

namespace mirage::tile {

constexpr int kConsumerThreads = 4;  // warps of a user that receive many tokens' totals

struct alignas(16) Tagged {
  uint64_t tag, value;
};

__device__ inline void publish(Tagged* at, Tagged given) {
  asm volatile(
      "{ .reg .b128 both;\n"
      "mov.b128 both, {%1, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], both; }" ::"l"(at),
      "l"(given.tag), "l"(given.value)
      : "memory");
}

__device__ inline Tagged poll(const Tagged* at) {
  Tagged found;
  asm volatile(
      "{ .reg .b128 both;\n"
      "ld.relaxed.gpu.global.b128 both, [%2];\n"
      "mov.b128 {%0, %1}, both; }"
      : "=l"(found.tag), "=l"(found.value)
      : "l"(at)
      : "memory");
  return found;
}

// A barrier of a user's warps that receive.
template <int kWarps>
__device__ void sync_consumers() {
  if constexpr (kWarps > 1) {
    sync_threads<4, kWarps * kWarpLanes>();
  } else {
    __syncwarp();
  }
}

// Another one whenever a multiprocessor is asked.
__device__ inline uint64_t new_launch_tag() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time * 0x9e3779b97f4a7c15 ^ static_cast<uint64_t>(clock64());
}

// `Plan` says what of the program and of its knobs decides who makes what: Element, kTokens (of a
// user), kInner (rows that the grid does not cut), kProducerRows and kProducerTokens (of a maker).
template <class Plan>
class ProducerBlocks {
 public:
  using T = typename Plan::Element;
  static constexpr int kQuad = sizeof(uint64_t) / sizeof(T), kQuads = Plan::kInner / kQuad;
  static constexpr int kRowTiles = (Plan::kInner + Plan::kProducerRows - 1) / Plan::kProducerRows;
  static constexpr int kProducers = Plan::kTokens / Plan::kProducerTokens * kRowTiles;
  static_assert(Plan::kInner % kQuad == 0 && Plan::kProducerRows % kQuad == 0);
  static_assert(Plan::kTokens % Plan::kProducerTokens == 0 && kProducers <= kWarpLanes);

  __device__ explicit ProducerBlocks(const LaunchArgs& args)
      : tokens_(static_cast<int>(args.dims[0])), nonce_(args.nonce) {
    totals_ = static_cast<Tagged*>(args.workspace);
    told_ =
        totals_ + args.dims[0] * kQuads + static_cast<int64_t>(blockIdx.y) * users() * kProducers;
  }

  // Of the workspace: totals [tokens, kQuads], and what is told [tiles of tokens, users, makers].
  static int64_t bytes(int64_t tokens, int64_t users) {
    const int64_t tiles = (tokens + Plan::kTokens - 1) / Plan::kTokens;
    return (tokens * kQuads + tiles * users * kProducers) * static_cast<int64_t>(sizeof(Tagged));
  }

  __device__ static bool is_producer() { return blockIdx.x < kProducers; }
  __device__ static int consumer() { return static_cast<int>(blockIdx.x) - kProducers; }

  // A maker's tile.
  __device__ static int first_row() { return blockIdx.x % kRowTiles * Plan::kProducerRows; }
  __device__ static int first_token() {
    return static_cast<int>(blockIdx.y) * Plan::kTokens +
           static_cast<int>(blockIdx.x) / kRowTiles * Plan::kProducerTokens;
  }

  // Where a maker has its tag, behind all else that it has in shared memory.
  static constexpr int kTagBytes = 16;
  __device__ static uint64_t& tag(char* shared) { return *reinterpret_cast<uint64_t*>(shared); }

  // By all threads of a maker: body(element) for all elements of its tile, left with the tag.
  template <int kThreads, class Body>
  __device__ void make(OutputTile tile, uint64_t tag, Body body) const {
    constexpr int kOwnQuads = Plan::kProducerRows / kQuad;
    const int tokens = min(Plan::kProducerTokens, tile.tokens - tile.first_token);
#pragma unroll 1
    for (int i = threadIdx.x; i < tokens * kOwnQuads; i += kThreads) {
      const int token = i / kOwnQuads, row = i % kOwnQuads * kQuad;
      if (tile.first_row + row >= tile.rows) continue;
      alignas(uint64_t) T totals[kQuad];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) totals[j] = cast<T>(body(Element{row + j, token}));
      leave_quad(tile.first_token + token, tile.first_row + row,
                 {tag, reinterpret_cast<const uint64_t&>(totals)});
    }
    tell<kThreads>(tag);
  }

  // Four totals of a token, from a row on, beside the tag.
  __device__ void leave_quad(int token, int row, Tagged quad) const {
    publish(totals_ + static_cast<int64_t>(token) * kQuads + row / kQuad, quad);
  }

  // By all threads of a maker: every user is told its tag.
  template <int kThreads>
  __device__ void tell(uint64_t tag) const {
    for (int i = threadIdx.x; i < users(); i += kThreads) {
      publish(told_ + i * kProducers + blockIdx.x, {nonce_, tag});
    }
  }

  // By `warp` of kWarps of a user, each for its own tokens: kept[token, row] = the totals, as soon
  // as they are there.
  template <int kWarps = 1>
  __device__ void receive(Resident<T, Plan::kTokens, Plan::kInner> kept, int warp = 0) const {
    constexpr int kOwn = Plan::kTokens / kWarps, kAll = kOwn * kQuads;
    constexpr int kMost = (kAll + kWarpLanes - 1) / kWarpLanes;
    constexpr int kAtOnce = kMost < 16 ? kMost : 16;
    const uint64_t tag = await_makers<kWarps>(warp);
    const int first_token = static_cast<int>(blockIdx.y) * Plan::kTokens + warp * kOwn;
    const int count = min(kOwn, tokens_ - first_token) * kQuads;
    const Tagged* const first = totals_ + static_cast<int64_t>(first_token) * kQuads;
    // All looks come before the first comparison: && keeps them producers. Without branches,
    // comparisons stood between looks and waited for them, one by one (14.9 us against 13.1).
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kAtOnce * kWarpLanes) {
      const int mine = begin + lane();
      Tagged found[kAtOnce];
      uint64_t wanted[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        wanted[j] = __shfl_sync(~0u, tag, maker_of(warp * kAll + mine + j * kWarpLanes));
      }
      bool complete;
      do {
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (mine + j * kWarpLanes < count) found[j] = poll(first + mine + j * kWarpLanes);
        }
        complete = true;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          complete = complete && (mine + j * kWarpLanes >= count || found[j].tag == wanted[j]);
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
  __device__ static int users() { return static_cast<int>(gridDim.x) - kProducers; }

  __device__ static int maker_of(int quad) {
    const int token_tile = quad / kQuads / Plan::kProducerTokens;
    return (token_tile * kRowTiles + quad % kQuads * kQuad / Plan::kProducerRows) % kWarpLanes;
  }

  // Lane i returns with the tag of maker i. Looking without a pause slowed all down (10.1 us
  // against 9.95, 16 tokens), looking twice as often the more (10.4).
  static constexpr unsigned kPause = 250;  // nanoseconds
  template <int kWarps>
  __device__ uint64_t await_makers(int warp) const {
    Tagged told{};
    Tagged* const at = told_ + consumer() * kProducers + lane();
    if (lane() < kProducers) {
      for (told = poll(at); told.tag != nonce_; told = poll(at)) __nanosleep(kPause);
    }
    __syncwarp();
    sync_consumers<kWarps>();  // all have seen it
    if (warp == 0 && lane() < kProducers) publish(at, {});
    __syncwarp();
    return told.value;
  }

  Tagged *totals_, *told_;
  int tokens_;
  uint64_t nonce_;
};

// A barrier of the warps that stream; one that the warps beside them come to, too.
template <int kWarps>
__device__ void sync_pipelines() {
  sync_threads<2, kWarps * kWarpLanes>();
}
template <int kWarps, int kConsumerThreads = 1>
__device__ void sync_intermediate() {
  sync_threads<3, (kWarps + kConsumerThreads) * kWarpLanes>();
}

}  // namespace mirage::tile
