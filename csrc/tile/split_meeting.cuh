// Where the two blocks of a split meet: each finishes half of the tokens.
//
// A block leaves its sums of its own tokens in shared memory, sends those of the others' tokens to
// the other block, and adds what that one sends: first block first, the same on every run.
#pragma once

#include "tile/epilogue.cuh"
#include "tile/meeting.cuh"
#include "tile/split.cuh"

namespace mirage::tile {

// [both blocks, kParts, half of the tokens, kRows], and what is sent.
template <class Block>
struct SplitAccumMeeting {
  static constexpr int kParts = Block::kTurns;  // warpgroups with sums of the same elements
  static constexpr int kHalf = Block::kTokens / kSplitBlocks, kPitch = Block::kRows + 4;
  static constexpr int kSentBytes = kParts * kHalf * kPitch * static_cast<int>(sizeof(float));
  static constexpr int kBytes = (kSplitBlocks + 1) * kSentBytes;
};

// [both blocks, half of the tokens], and what is sent.
template <class Block>
struct SplitTokenMeeting {
  static constexpr int kHalf = Block::kTokens / kSplitBlocks;
  static constexpr int kSentBytes = kHalf * static_cast<int>(sizeof(float));
  static constexpr int kBytes = (kSplitBlocks + 1) * kSentBytes;
};

template <int kHalf>
struct SplitTokenParts {
  const float* at;
};

template <int kHalf>
__device__ float sum_over_warps(SplitTokenParts<kHalf> parts, Element e) {
  return parts.at[e.token] + parts.at[kHalf + e.token];
}

// Where this block leaves its sums of the tokens of one half.
template <class Meeting>
__device__ float* half_at(char* area, int rank, int half) {
  const int part = half == rank ? rank : kSplitBlocks;
  return reinterpret_cast<float*>(area + part * Meeting::kSentBytes);
}

template <class Block, int kTiles, int kTokens>
__device__ AccumMeeting<Block::kRows, kTokens / kSplitBlocks, kSplitBlocks * Block::kTurns> meet(
    Block block, char* area, const WideAccum<kTiles, kTokens>& accum) {
  using Meeting = SplitAccumMeeting<Block>;
  constexpr int kHalfTiles = Meeting::kHalf / kTokenTile;
  const int in_group = warp_index() % kGroupWarps * kRowTile + lane_line();
  const int first = Block::own_row();
  const int part = Block::kTakesTurns ? Block::product_group() : 0;
  if (warp_index() < kProductWarps) {
#pragma unroll
    for (int m = 0; m < kTokens / kTokenTile; ++m) {
      float* to = half_at<Meeting>(area, block.rank, m / kHalfTiles) +
                  (part * Meeting::kHalf + m % kHalfTiles * kTokenTile) * Meeting::kPitch;
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = r * kGroupRows + in_group + i / 2 * kLineTile;
          const int token = lane_quarter() * 2 + i % 2;
          if (row < Block::kOwnRows) to[token * Meeting::kPitch + first + row] = accum.at[r][m][i];
        }
      }
    }
  }
  return {reinterpret_cast<const float*>(area)};
}

// Sums of a preparing warp's tokens: four lanes have parts of a line (PreparedStep).
template <class Block, int kLines>
__device__ SplitTokenParts<Block::kTokens / kSplitBlocks> meet(
    Block block, char* area, const Partial<Dims::kTokensDepth, kLines>& partial) {
  using Meeting = SplitTokenMeeting<Block>;
  if (block.prepares() && !block.copies()) {
#pragma unroll
    for (int i = 0; i < kLines / kLineTile; ++i) {
      float sum = partial.at[i];
      sum += __shfl_xor_sync(~0u, sum, 8);
      sum += __shfl_xor_sync(~0u, sum, 16);
      const int token = warp_index() % kGroupWarps * kLines + i * kLineTile + lane();
      float* to = half_at<Meeting>(area, block.rank, token / Meeting::kHalf);
      if (lane() < kLineTile) to[token % Meeting::kHalf] = sum;
    }
  }
  return {reinterpret_cast<const float*>(area)};
}

// The copier's part in what follows the loop.
__device__ inline void stand_by() {
  __syncwarp();
  for (int meeting = 0; meeting < 2; ++meeting) {
    arrive_cluster();
    wait_cluster();
  }
}

// After the loop, before meet(): the ring's bytes are free in this block, and soon in the other.
template <class Block>
__device__ void end_loop(Block) {
  wait_for_previous();
  sync_threads<2, Block::kWorkers>();
  arrive_cluster();
}

// Sends one meeting's outgoing part to its place in the other block.
template <class Meeting, class Block>
__device__ void send(Block block, char* area) {
  const uint32_t from = shared_address(area + kSplitBlocks * Meeting::kSentBytes);
  const uint32_t to = shared_address(area + block.rank * Meeting::kSentBytes);
  uint32_t there, barrier;
  const int other = kSplitBlocks - 1 - block.rank;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(to), "r"(other));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(barrier)
      : "r"(shared_address(&block.met())), "r"(other));
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(there),
      "r"(from), "r"(Meeting::kSentBytes), "r"(barrier)
      : "memory");
}

// After meet(): sends what is for the other block and returns when what it sends is here. `sends`
// is run by one thread.
template <class Block, class Sends>
__device__ void exchange(Block block, Sends sends) {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  wait_cluster();
  sync_threads<2, Block::kWorkers>();
  if (threadIdx.x == 0) sends();
  wait(block.met(), 0);
  arrive_cluster();  // what this block waited for has left the other one
}

// body(element) for all elements of this block's half: a thread has rows of one token, so that what
// depends on the token alone is computed once, and tests none where the tile is whole: elements
// behind tests wait for one another.
template <class Block, class Body>
__device__ void for_each_own(OutputTile tile, Body body) {
  constexpr int kHalf = Block::kTokens / kSplitBlocks;
  constexpr int kEach = (Block::kRows * kHalf + Block::kWorkers - 1) / Block::kWorkers;
  constexpr int kOwn = (kEach + 3) / 4 * 4, kStride = (Block::kRows + kOwn - 1) / kOwn;
  const int tokens = min(kHalf, tile.tokens - tile.first_token);
  const int rows = min(Block::kRows, tile.rows - tile.first_row);
#pragma unroll 1
  for (int i = threadIdx.x; i < kStride * tokens; i += Block::kWorkers) {
    const int first = i % kStride, token = i / kStride;
    if (rows == kStride * kOwn) {
#pragma unroll 8
      for (int r = 0; r < kOwn; ++r) body(Element{first + r * kStride, token});
    } else {
#pragma unroll 1
      for (int row = first; row < rows; row += kStride) body(Element{row, token});
    }
  }
}

}  // namespace mirage::tile
