// The plan of held tokens: a block has all of the depth of its rows, and its tokens are operands in
// registers.
//
// With tokens on the M side of a warpgroup's product, weights are multiplied as they lie in shared
// memory, and each byte is read from there once. (On the M side themselves they fill tiles of 64
// rows, and tokens are read anew for every tile: 20.3 us against 18.9, gated MLP 4096 -> 2 x 4096
// at 64 tokens.) One warp copies boxes. Warpgroups take turns at steps, each with all rows and
// tokens; after the loop each finishes some of the rows.
#pragma once

#include "tile/epilogue.cuh"
#include "tile/kept.cuh"
#include "tile/split.cuh"

namespace mirage::tile {

// `Plan` says what decides how a block is built: Element, kRows, kTokens, kStages, kGroups (one or
// two warpgroups), kDepth, kRowTensors (streamed weights), kInner (rows of a weight that the grid
// does not cut), kBesideBytes (kept beside the ring).
template <class Plan>
struct HeldBlock {
  using T = typename Plan::Element;
  static constexpr int kRows = Plan::kRows, kTokens = Plan::kTokens, kStages = Plan::kStages;
  static constexpr int kGroups = Plan::kGroups, kBoxes = 2;  // of a step: a barrier for both
  static constexpr int kStepDepth = kBoxes * kBoxDepth, kSteps = Plan::kDepth / kStepDepth;
  static_assert(Plan::kDepth % (kGroups * kStepDepth) == 0, "whole turns");
  static_assert(kStages % kGroups == 0, "a stage is always the same warpgroup's");
  static_assert(kGroups <= 2 && kRows % (kGroups * kLineTile) == 0);
  static_assert(kTokens % kRowTile == 0 && kTokens <= kGroupRows);

  static constexpr int kWarps = kGroups * kGroupWarps;
  static constexpr int kWorkers = kWarps * kWarpLanes, kThreads = kWorkers + kWarpLanes;
  static constexpr int kRowBytes = kRows * kBoxLineBytes, kTokenBytes = kTokens * kBoxLineBytes;
  static constexpr int kInnerBytes = Plan::kInner * kBoxLineBytes;
  static constexpr int kInnerAt = Plan::kRowTensors * kRowBytes, kTokensAt = kInnerAt + kInnerBytes;
  static constexpr int kBoxBytes = kTokensAt + kTokenBytes;
  static constexpr int kStageBytes = kBoxes * kBoxBytes, kRingBytes = kStages * kStageBytes;
  static constexpr int kBarriersAt = kRingBytes + Plan::kBesideBytes;
  static constexpr int kUsedBytes =
      kBarriersAt + 2 * kStages * static_cast<int>(sizeof(CopyBarrier));
  static constexpr int kBytes = kUsedBytes > kAloneBytes ? kUsedBytes : kAloneBytes;

  char* shared;
  int token_lines;  // of a box of tokens

  __device__ CopyBarrier& full(int stage) const {
    return reinterpret_cast<CopyBarrier*>(shared + kBarriersAt)[stage];
  }
  __device__ CopyBarrier& empty(int stage) const { return full(kStages + stage); }
  __device__ bool copies() const { return warp_index() == kWarps; }
  __device__ static int group() { return warp_index() / kGroupWarps; }
  __device__ static int first_token() { return warp_index() % kGroupWarps * kRowTile; }

  // One box of a step, as the copier sees it.
  struct Slot {
    char* at;
    CopyBarrier& full;
    __device__ char* rows(int i) const { return at + i * kRowBytes; }
    __device__ char* inner() const { return at + kInnerAt; }
    __device__ char* tokens() const { return at + kTokensAt; }
  };
  __device__ Slot slot(int stage, int box) const {
    return {shared + stage * kStageBytes + box * kBoxBytes, full(stage)};
  }

  // The k of a step: neighbouring blocks begin at different ones and come round to the rest.
  __device__ static int step_k(int step) {
    return (step + static_cast<int>(blockIdx.x)) % kSteps * kStepDepth;
  }

  // Makes the barriers. The copier makes its own and begins before the others are there.
  __device__ void begin() const {
    if (copies() && lane() == 0) {
      for (int s = 0; s < kStages; ++s) init(full(s), 1);
      fence_init();
    } else if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) init(empty(s), kGroupWarps);
      fence_init();
    }
    if (!copies()) start_together();
  }
  __device__ static void start_together() { sync_threads<1, kThreads>(); }

  // By the copier: step after step. Weights of the first steps may be read `early`, while the
  // kernel before still runs.
  template <class CopyWeights, class CopyTokens>
  __device__ void copy(bool early, CopyWeights copy_weights, CopyTokens copy_tokens) const {
    constexpr int kFirst = kStages < kSteps ? kStages : kSteps;
    const bool runs = lane() == 0;
    const auto weights = [&](int step, int stage) {
      expect(full(stage), kStageBytes - kBoxes * (kTokens - token_lines) * kBoxLineBytes);
      for (int b = 0; b < kBoxes; ++b) {
        copy_weights(slot(stage, b), step_k(step) + b * kBoxDepth);
      }
    };
    const auto tokens = [&](int step, int stage) {
      for (int b = 0; b < kBoxes; ++b) copy_tokens(slot(stage, b), step_k(step) + b * kBoxDepth);
    };
    if (!early) wait_for_previous();
    for (int s = 0; runs && s < kFirst; ++s) {
      weights(s, s);
      if (!early) tokens(s, s);
    }
    if (early) {
      wait_for_previous();
      for (int s = 0; runs && s < kFirst; ++s) tokens(s, s);
    }
    __syncwarp();
    start_together();
    RingPlace<kStages> place;
#pragma unroll 1
    for (int step = kStages; runs && step < kSteps; ++step) {
      wait(empty(place.stage), place.parity);
      weights(step, place.stage);
      tokens(step, place.stage);
      place.advance();
    }
  }

  // By all lanes of a warp: what it read of a step may be overwritten.
  __device__ void release(int stage) const {
    __syncwarp();
    if (lane() == 0) arrive(empty(stage));
  }
};

// Boxes of rows, to be multiplied as they lie.
template <class Block>
struct HeldRows {
  const char* at;  // of the first box
};

// [M, N] fp32 of a warpgroup: of rows 8 m + 0..7 a lane has what mma.m16n8k16 leaves of 16 tokens.
template <int kRows>
struct HeldAccum {
  float at[kRows / kLineTile][4] = {};
};

// A step as a warpgroup sees it: a warp has 16 tokens, all have all rows. In registers a lane has
// what the tensor cores take: of every 16 k the pairs 2t, 2t + 1 and 2t + 8, 2t + 9.
template <class Block>
struct HeldStep {
  using T = typename Block::T;
  using Tokens = TokenFrag<T, kRowTile, Block::kStepDepth>;
  Block block;
  int stage;

  __device__ HeldRows<Block> rows(int i) const { return {block.slot(stage, 0).rows(i)}; }
  __device__ HeldRows<Block> inner() const { return {block.slot(stage, 0).inner()}; }

  // Warps without tokens read nothing: their products are not used.
  __device__ Tokens tokens() const {
    Tokens tokens{};
    if (Block::first_token() >= Block::kTokens) return tokens;
    const int line = Block::first_token() + lane() % kRowTile;
#pragma unroll
    for (int m = 0; m < Block::kBoxes * kMmas; ++m) {
      const char* box = block.slot(stage, m / kMmas).tokens();
      auto& low = tokens.at[0][m / 2].pairs;
      auto& high = tokens.at[1][m / 2].pairs;
      const int p = m % 2 * 2;
      const uint32_t from =
          shared_address(box) + box_offset(line, 2 * (m % kMmas) + lane() / kRowTile);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(reinterpret_cast<uint32_t&>(low[p])),
                     "=r"(reinterpret_cast<uint32_t&>(high[p])),
                     "=r"(reinterpret_cast<uint32_t&>(low[p + 1])),
                     "=r"(reinterpret_cast<uint32_t&>(high[p + 1]))
                   : "r"(from)
                   : "memory");
    }
    return tokens;
  }
};

// accum[m, n] += sum over k of tokens[m, k] * rows[n, k], begun here, done after end_products().
template <int kRows, class T, int kChunks, class Block>
__device__ void contract(HeldAccum<kRows>& accum, HeldRows<Block> rows,
                         const Fragment<Dims::kTokensDepth, T, 2, kChunks>& tokens) {
  static_assert(kChunks * 2 == Block::kBoxes * kMmas, "a whole step");
  begin_products();
#pragma unroll
  for (int m = 0; m < Block::kBoxes * kMmas; ++m) {
    const auto& low = tokens.at[0][m / 2].pairs;
    const auto& high = tokens.at[1][m / 2].pairs;
    const int p = m % 2 * 2;
    const uint32_t operand[4] = {bits(low[p]), bits(high[p]), bits(low[p + 1]), bits(high[p + 1])};
    const char* box = rows.at + m / kMmas * Block::kBoxBytes;
    Wgmma<T, kRows>::add(accum.at, operand, descriptor(box + m % kMmas * kMmaBytes));
  }
}

// body(step) for all steps, by warpgroups in turns.
template <class Block, class Body>
__device__ void multiply_held(Block block, Body body) {
  RingPlace<Block::kStages> place{Block::group()};
#pragma unroll 1
  for (int step = Block::group(); step < Block::kSteps; step += Block::kGroups) {
    wait(block.full(place.stage), place.parity);
    body(HeldStep<Block>{block, place.stage});
    end_products();
    block.release(place.stage);
    place.advance(Block::kGroups);
  }
}

// [warpgroups, octets of rows, lanes] four sums of a lane, for the warpgroup that finishes them.
template <class Block>
struct HeldMeeting {
  static constexpr int kOctets = Block::kRows / kLineTile / Block::kGroups;
  static constexpr int kLanes = kGroupWarps * kWarpLanes;
  static constexpr int kBytes =
      Block::kGroups == 1 ? 0
                          : Block::kGroups * kOctets * kLanes * static_cast<int>(sizeof(float4));
};

// What a warp finished, on its way out: lines of 16 tokens.
template <class Block>
struct HeldStaging {
  static constexpr int kLineBytes = HeldMeeting<Block>::kOctets * kOctetBytes;
  static constexpr int kWarpBytes = kRowTile * kLineBytes, kBytes = Block::kWarps * kWarpBytes;
};

template <int kOctets>
struct HeldSums {
  float at[kOctets][4];
};

// An element, and where its sums are in the thread.
struct HeldElement : Element {
  int octet, i;
  float* result;
};

template <int kOctets>
__device__ float sum_over_warps(const HeldSums<kOctets>& sums, HeldElement e) {
  return sums.at[e.octet][e.i];
}

template <class T>
__device__ void store(T*, OutputTile, HeldElement e, float value) {
  *e.result = value;  // for_each_held stores lines
}

template <class Block>
__device__ void sync_workers(Block) {
  sync_threads<2, Block::kWorkers>();
}

// Leaves the sums of the other warpgroup's rows in shared memory, returns those of its own.
template <class Block, int kRows>
__device__ HeldSums<HeldMeeting<Block>::kOctets> meet(Block, char* area,
                                                      const HeldAccum<kRows>& accum) {
  using Meeting = HeldMeeting<Block>;
  HeldSums<Meeting::kOctets> own;
  const int group = Block::group(), lane = threadIdx.x % Meeting::kLanes;
  auto* const theirs =
      reinterpret_cast<float4*>(area) + (1 - group) * Meeting::kOctets * Meeting::kLanes + lane;
#pragma unroll
  for (int octet = 0; octet < kRows / kLineTile; ++octet) {
    const int m = octet % Meeting::kOctets;
    const float (&sums)[4] = accum.at[octet];
    if (octet / Meeting::kOctets == group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) own.at[m][i] = sums[i];
    } else {
      theirs[m * Meeting::kLanes] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
  }
  return own;
}

// Leaves all sums in shared memory, for what begins with the totals of all tokens.
template <class Block, int kRows>
__device__ AccumMeeting<kRows, Block::kTokens, Block::kGroups> meet_whole(
    Block, char* area, const HeldAccum<kRows>& accum) {
  using Meeting = AccumMeeting<kRows, Block::kTokens, Block::kGroups>;
  float* const mine =
      reinterpret_cast<float*>(area) + Block::group() * Block::kTokens * Meeting::kPitch;
  if (Block::first_token() < Block::kTokens) {
#pragma unroll
    for (int octet = 0; octet < kRows / kLineTile; ++octet) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = Block::first_token() + lane_line() + half * kLineTile;
        const int row = octet * kLineTile + lane_quarter() * 2;
        *reinterpret_cast<float2*>(mine + token * Meeting::kPitch + row) =
            make_float2(accum.at[octet][2 * half], accum.at[octet][2 * half + 1]);
      }
    }
  }
  return {reinterpret_cast<const float*>(area)};
}

// Behind a barrier: the other warpgroup's sums of the same elements are added.
template <class Block, int kOctets>
__device__ void collect(Block, const char* area, HeldSums<kOctets>& own) {
  using Meeting = HeldMeeting<Block>;
  if constexpr (Block::kGroups > 1) {
    const auto* mine = reinterpret_cast<const float4*>(area) +
                       Block::group() * kOctets * Meeting::kLanes + threadIdx.x % Meeting::kLanes;
#pragma unroll
    for (int m = 0; m < kOctets; ++m) {
      const float4 sums = mine[m * Meeting::kLanes];
      own.at[m][0] += sums.x;
      own.at[m][1] += sums.y;
      own.at[m][2] += sums.z;
      own.at[m][3] += sums.w;
    }
  }
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

// body(element) for all elements that this thread finishes, then stores what it gave to store().
// Elements outside the tensor are computed like those at its edge, and not stored.
template <class Block, class T, class Body>
__device__ void for_each_held(Block, char* staging, OutputTile tile, T* out, Body body) {
  constexpr int kOctets = HeldMeeting<Block>::kOctets;
  using Staging = HeldStaging<Block>;
  if (Block::first_token() >= Block::kTokens) return;
  const int rows = tile.rows - tile.first_row, tokens = tile.tokens - tile.first_token;
  const int first_row = Block::group() * kOctets * kLineTile;
  char* const lines = staging + warp_index() * Staging::kWarpBytes;
  // Lines begin at different octets: eight of them use all banks.
  const auto place = [&](int line, int octet) {
    return lines + line * Staging::kLineBytes + (octet + line) % kOctets * kOctetBytes;
  };
#pragma unroll
  for (int m = 0; m < kOctets; ++m) {
    float results[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + m * kLineTile + lane_quarter() * 2 + i % 2;
      const int token = Block::first_token() + lane_line() + i / 2 * kLineTile;
      body(HeldElement{{min(row, rows - 1), min(token, tokens - 1)}, m, i, &results[i]});
    }
    const auto low = from_floats<T>(make_float2(results[0], results[1]));
    const auto high = from_floats<T>(make_float2(results[2], results[3]));
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(
                     shared_address(place(lane() % kRowTile, m))),
                 "r"(bits(low)), "r"(bits(high))
                 : "memory");
  }
  __syncwarp();
#pragma unroll
  for (int i = lane(); i < kRowTile * kOctets; i += kWarpLanes) {
    const int line = i / kOctets, octet = i % kOctets;
    const Element e{first_row + octet * kLineTile, Block::first_token() + line};
    if (e.token < tokens) store_octet(out, tile, e, place(line, octet));
  }
}

}  // namespace mirage::tile
