// Producer and consumer blocks of an intermediate that every block of the grid needs.
//
// Every block would compute the rows that the grid does not cut, and read all of them from L2.
// Where multiprocessors are free, the first blocks of the grid, the producers, share these rows and
// the tokens, with all of the depth; they wait for nobody. The other blocks, the consumers, compute
// only their own rows. While their warps stream weights, one more warp, or four, receives the
// intermediate and multiplies it.
//
// The workspace holds 16-byte packets, each written and read as one: four values and a tag that no
// earlier launch has used, so a reader that prefetches the tag has the values. A producer publishes
// its tag to every consumer beside the call's launch tag, a number that memory does not hold by
// chance. So producers need no fence, and every consumer polls addresses of its own: polling one
// address slowed down all (15.5 us against 13.0, 64 tokens). Consumers clear the launch tags, so
// that a CUDA graph can be replayed.
#pragma once

#include "tile/mma/resident.cuh"
#include "variants.h"

MIRAGE_KNOB(ProducerRows)
MIRAGE_KNOB(ProducerTokens)
MIRAGE_KNOB(ProducerWarps)
MIRAGE_KNOB(ProducerGroups)
MIRAGE_KNOB(ProducerStages)

namespace mirage::tile {

constexpr int kReceivingWarps = 4;  // warps of a consumer that receive, where tokens are many

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

// A barrier of a consumer's receiving warps.
template <int kWarps>
__device__ void sync_consumers() {
  if constexpr (kWarps > 1) {
    sync_threads<4, kWarps * kWarpLanes>();
  } else {
    __syncwarp();
  }
}

// A different number in every call on a multiprocessor.
__device__ inline uint64_t new_tag() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time * 0x9e3779b97f4a7c15 ^ static_cast<uint64_t>(clock64());
}

// `Plan` has Element, kTokens (of a consumer), kInner (rows that the grid does not cut),
// kProducerRows and kProducerTokens (of a producer's tile).
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
      : tokens_(static_cast<int>(args.dims[0])), launch_tag_(args.nonce) {
    totals_ = static_cast<Tagged*>(args.workspace);
    tags_ = totals_ + args.dims[0] * kQuads +
            static_cast<int64_t>(blockIdx.y) * consumers() * kProducers;
  }

  // Of the workspace: values [tokens, kQuads], and tags [token tiles, consumers, producers].
  static int64_t bytes(int64_t tokens, int64_t consumers) {
    const int64_t tiles = (tokens + Plan::kTokens - 1) / Plan::kTokens;
    return (tokens * kQuads + tiles * consumers * kProducers) *
           static_cast<int64_t>(sizeof(Tagged));
  }

  __device__ static bool is_producer() { return blockIdx.x < kProducers; }
  __device__ static int consumer() { return static_cast<int>(blockIdx.x) - kProducers; }

  // A producer's tile.
  __device__ static int first_row() { return blockIdx.x % kRowTiles * Plan::kProducerRows; }
  __device__ static int first_token() {
    return static_cast<int>(blockIdx.y) * Plan::kTokens +
           static_cast<int>(blockIdx.x) / kRowTiles * Plan::kProducerTokens;
  }

  // A producer keeps its tag in shared memory, after everything else.
  static constexpr int kTagBytes = 16;
  __device__ static uint64_t& tag(char* shared) { return *reinterpret_cast<uint64_t*>(shared); }

  // By all threads of a producer: body(element) for all elements of its tile, published with the
  // tag.
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
      publish_quad(tile.first_token + token, tile.first_row + row,
                   {tag, reinterpret_cast<const uint64_t&>(totals)});
    }
    publish_tag<kThreads>(tag);
  }

  // Four values of a token, from a row on, beside the tag.
  __device__ void publish_quad(int token, int row, Tagged quad) const {
    publish(totals_ + static_cast<int64_t>(token) * kQuads + row / kQuad, quad);
  }

  // By all threads of a producer: publishes its tag to every consumer.
  template <int kThreads>
  __device__ void publish_tag(uint64_t tag) const {
    for (int i = threadIdx.x; i < consumers(); i += kThreads) {
      publish(tags_ + i * kProducers + blockIdx.x, {launch_tag_, tag});
    }
  }

  // By `warp` of a consumer's kWarps receiving warps, each for its own tokens: resident[token, row]
  // = the values, as soon as they are there.
  template <int kWarps = 1>
  __device__ void receive(Resident<T, Plan::kTokens, Plan::kInner> resident, int warp = 0) const {
    constexpr int kOwn = Plan::kTokens / kWarps, kAll = kOwn * kQuads;
    constexpr int kMost = (kAll + kWarpLanes - 1) / kWarpLanes;
    constexpr int kAtOnce = kMost < 16 ? kMost : 16;
    const uint64_t tag = wait_for_producers<kWarps>(warp);
    const int first_token = static_cast<int>(blockIdx.y) * Plan::kTokens + warp * kOwn;
    const int count = min(kOwn, tokens_ - first_token) * kQuads;
    const Tagged* const first = totals_ + static_cast<int64_t>(first_token) * kQuads;
    // All loads come before the first comparison: && keeps them together. Without branches the
    // compiler put comparisons between loads, one waiting for the other (14.9 us against 13.1).
#pragma unroll 1
    for (int begin = 0; begin < count; begin += kAtOnce * kWarpLanes) {
      const int mine = begin + lane();
      Tagged found[kAtOnce];
      uint64_t wanted[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        wanted[j] = __shfl_sync(~0u, tag, producer_of(warp * kAll + mine + j * kWarpLanes));
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
        T* const to = resident.at(warp * kOwn + i / kQuads, i % kQuads * kQuad);
        *reinterpret_cast<uint64_t*>(to) = found[j].value;
      }
    }
  }

 private:
  __device__ static int consumers() { return static_cast<int>(gridDim.x) - kProducers; }

  __device__ static int producer_of(int quad) {
    const int token_tile = quad / kQuads / Plan::kProducerTokens;
    return (token_tile * kRowTiles + quad % kQuads * kQuad / Plan::kProducerRows) % kWarpLanes;
  }

  // Lane i returns with the tag of producer i. Polling without a pause slowed down all (10.1 us
  // against 9.95, 16 tokens), polling twice as often even more (10.4).
  static constexpr unsigned kPause = 250;  // nanoseconds
  template <int kWarps>
  __device__ uint64_t wait_for_producers(int warp) const {
    Tagged found{};
    Tagged* const at = tags_ + consumer() * kProducers + lane();
    if (lane() < kProducers) {
      for (found = poll(at); found.tag != launch_tag_; found = poll(at)) __nanosleep(kPause);
    }
    __syncwarp();
    sync_consumers<kWarps>();  // all have seen it
    if (warp == 0 && lane() < kProducers) publish(at, {});
    __syncwarp();
    return found.value;
  }

  Tagged *totals_, *tags_;
  int tokens_;
  uint64_t launch_tag_;
};

// A barrier of the warps that stream weights, and one that includes the receiving warps.
template <int kWarps>
__device__ void sync_pipelines() {
  sync_threads<2, kWarps * kWarpLanes>();
}
template <int kWarps, int kReceivingWarps = 1>
__device__ void sync_intermediate() {
  sync_threads<3, (kWarps + kReceivingWarps) * kWarpLanes>();
}

}  // namespace mirage::tile
