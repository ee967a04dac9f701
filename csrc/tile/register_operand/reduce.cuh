// Reductions of register-operand blocks: across warpgroups, and across the blocks of a cluster.
#pragma once

#include "tile/register_operand/block.cuh"

namespace mirage::tile {

// Shared memory for the warpgroups' partial sums; it takes the place of the pipeline.
template <class Block>
struct RegisterOperandReduction {
  static constexpr int kBytes = Block::Sums::kLocalBytes;
};

// Staging of a warp's results before the store: lines of 16 tokens, an odd number of vectors apart,
// so that eight of them use all banks.
template <class Block>
struct RegisterOperandStaging {
  static constexpr int kVectors16 = Block::Sums::kOwn;
  static constexpr int kLineBytes = (kVectors16 | 1) * kVec16Bytes;
  static constexpr int kWarpBytes = kRowTile * kLineBytes, kBytes = Block::kWarps * kWarpBytes;
  static constexpr int kLanes = lanes_of_line(kVectors16, 2);
};

template <class Block>
__device__ void sync_workers(Block) {
  sync_threads<2, Block::kWorkers>();
}

// After the loop: all warps have read their last step.
template <class Block>
__device__ void end_loop(Block block) {
  sync_workers(block);
}

// Shared memory of a product's reduction; `area`: its place in the former pipeline.
template <class Block>
__device__ ReduceBuffers sums_at(Block block, char* area, int product) {
  return {block.shared + Block::kSumsAt + product * Block::Sums::kIncomingBytes, area};
}

// Stores partial sums of the rows that others finish; returns those of its own.
template <class Block, int kRows>
__device__ Own<typename Block::Sums> store_partials(Block block, char* area, int product,
                                                    const SwappedAccum<kRows>& accum) {
  using Sums = typename Block::Sums;
  const ReduceBuffers buffers = sums_at(block, area, product);
  if constexpr (Block::kByTokens) {
    return scatter(Sums{}, accum.at, buffers, Block::rank(), block.reduced());
  } else {
    using AllSums = const float (&)[1][Sums::kVectors16][4];
    return scatter<Sums>(reinterpret_cast<AllSums>(accum.at), buffers, Block::rank(),
                         block.reduced());
  }
}

// Stores all partial sums in shared memory, for a stage that reads the totals of all tokens.
template <class Block, int kRows>
__device__ AccumPartials<kRows, Block::kTokens, Block::kGroups> meet_whole(
    Block, char* area, const SwappedAccum<kRows>& accum) {
  using Partials = AccumPartials<kRows, Block::kTokens, Block::kGroups>;
  float* const mine =
      reinterpret_cast<float*>(area) + Block::group() * Block::kTokens * Partials::kPitch;
  if (Block::first_token() < Block::kTokens) {
#pragma unroll
    for (int vec = 0; vec < kRows / kLineTile; ++vec) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = Block::first_token() + lane_line() + half * kLineTile;
        const int row = vec * kLineTile + lane_quarter() * 2;
        *reinterpret_cast<float2*>(mine + token * Partials::kPitch + row) =
            make_float2(accum.at[vec][2 * half], accum.at[vec][2 * half + 1]);
      }
    }
  }
  return {reinterpret_cast<const float*>(area)};
}

// Stores per-token sums of a warp in all blocks; the four lanes of a line add up first.
template <class Block>
__device__ TokenParts<Block::kParts, Block::kTokens> store_partials(
    Block block, int i, const Partial<Dims::kTokensDepth, kRowTile>& partial) {
  float* const sums = block.token_sums(i);
#pragma unroll
  for (int line = 0; line < kRowTile / kLineTile; ++line) {
    float sum = partial.at[line];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int token = Block::first_token() + line * kLineTile + lane_line();
    if (lane_quarter() != 0 || token >= Block::kTokens) continue;
    const int part = Block::rank() * Block::kTurns + Block::turn();
    float* const at = sums + part * Block::kTokens + token;
    *at = sum;
    unrolled<Block::kBlocks - 1>([&](int i) {
      const int other = (Block::rank() + 1 + i) % Block::kBlocks;
      store_dsmem(map_to_block(at, other), sum, map_to_block(&block.reduced(), other));
    });
  }
  return {sums};
}

// After a barrier: adds the partial sums that others have stored.
template <class Block>
__device__ void add_partials(Block block, char* area, int product, Own<typename Block::Sums>& own) {
  using Sums = typename Block::Sums;
  if (Block::kBlocks > 1) wait_for_dsmem_stores(block.reduced(), 0);
  const ReduceBuffers buffers = sums_at(block, area, product);
  if constexpr (Block::kByTokens) {
    add_scattered(Sums{}, own, buffers);
  } else {
    add_scattered<Sums>(own, buffers);
  }
}

// body(element) for all elements that this thread finishes; then stores the values that body passed
// to store(). Elements outside the tensor are computed like the nearest one inside, and not stored.
template <class Block, class T, class Body>
__device__ void for_each_owned_row(Block, char* staging, OutputTile tile, T* out, Body body) {
  using Staging = RegisterOperandStaging<Block>;
  using Sums = typename Block::Sums;
  constexpr int kVectors16 = Staging::kVectors16, kLanes = Staging::kLanes;
  const int own_line = Sums::first_line(Block::rank());
  if (own_line >= Block::kTokens) return;
  const int rows = tile.rows - tile.first_row, tokens = tile.tokens - tile.first_token;
  const int first_row = Sums::first_vector() * kLineTile;
  char* const lines = staging + warp_index() * Staging::kWarpBytes;
  const auto place = [&](int line, int vec) {
    return lines + line * Staging::kLineBytes + vec * kVec16Bytes;
  };
  // All are computed before the first is stored, so that what is of their tokens is computed once.
  float results[kVectors16][4];
  unrolled<kVectors16, 4>([&](int m, int i) {
    const int row = first_row + m * kLineTile + lane_quarter() * 2 + i % 2;
    const int token = own_line + lane_line() + i / 2 * kLineTile;
    body(OwnedElement{{min(row, rows - 1), min(token, tokens - 1)}, 0, m, i, &results[m][i]});
  });
  unrolled<kVectors16>(
      [&](int m) { store_matrices<false, T>(place(lane() % kRowTile, m), results[m]); });
  __syncwarp();
  const int vec = lane() % kLanes;
  if (vec >= kVectors16) return;
  if (Block::kByTokens && first_row + vec * kLineTile >= Block::kRows) return;
#pragma unroll
  for (int line = lane() / kLanes; line < kRowTile; line += kWarpLanes / kLanes) {
    const Element e{first_row + vec * kLineTile, own_line + line};
    if (e.token < tokens) store_16_bytes(out, tile, e, place(line, vec));
  }
}

}  // namespace mirage::tile
