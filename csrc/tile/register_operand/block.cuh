// Register-operand wgmma: tokens are the A operand in registers, weights B in shared memory.
//
// With tokens on the M side, weights are multiplied as they lie in shared memory, and each byte is
// read from there once. (With weights on the M side they fill tiles of 64 rows, and every tile
// reads the tokens again: 20.3 us against 18.9, gated MLP 4096 -> 2 x 4096 at 64 tokens.) One
// producer warp copies TMA tiles. A warpgroup has all rows and 64 tokens. Two with the same tokens
// alternate between steps; after the loop each finishes some of the rows (reduce.cuh).
//
// A block has all of the depth, or the two or four blocks of a cluster share rows and split the
// depth: then each reads as much less of the tokens from L2.
//
// The loop computes functions of tokens (squares for a norm, scaled tokens) in these registers; [K]
// vectors lie whole beside the pipeline.
#pragma once

#include "tile/cluster_split_k/block.cuh"
#include "tile/reduce/scatter_tokens.cuh"

MIRAGE_SCHEDULE(RegisterOperand)
MIRAGE_KNOB(Barriers)

namespace mirage::tile {

constexpr int kLargestWgmmaN = 112;  // the largest instruction of mma/wgmma.cuh

MIRAGE_DEFAULT(Vectors, 0)
MIRAGE_DEFAULT(TokenSums, 0)
MIRAGE_DEFAULT(Barriers, 1)
MIRAGE_DEFAULT(TmaTiles, 2)

// `Plan` has the constants of a block: Element, kRows, kTokens, kStages, kGroups (one or two
// warpgroups: one for each 64 tokens, or two in turns), kBlocks (one, two or four that split the
// depth), kDepth, kRowTensors (weights that the loop reads), kProducts (accumulators), kInner (rows
// of a weight that the grid does not cut), kExtraBytes (shared memory beside the pipeline). Where
// the loop computes with tokens: kVectors ([K] inputs) and kTokenSums (per-token sums). Optionally
// kTmaTiles (of a step, two or one), kBarriers (of a stage: with two, each TMA tile has its own and
// is multiplied as soon as it arrives).
template <class Plan>
struct RegisterOperandBlock {
  using T = typename Plan::Element;
  static constexpr int kRows = Plan::kRows, kTokens = Plan::kTokens, kStages = Plan::kStages;
  static constexpr int kGroups = Plan::kGroups;
  static constexpr int kTokenGroups = (kTokens + kGroupRows - 1) / kGroupRows;
  static constexpr int kTmaTiles = kTmaTilesOf<Plan>;    // of a step
  static constexpr int kTurns = kGroups / kTokenGroups;  // warpgroups that alternate
  static constexpr int kBarriers = kBarriersOf<Plan>;
  static constexpr int kTmaTilesAtOnce = kTmaTiles / kBarriers;  // of one barrier
  static constexpr int kVectors = kVectorsOf<Plan>;
  static constexpr int kTokenSums = kTokenSumsOf<Plan>;
  static constexpr int kBlocks = Plan::kBlocks;
  static constexpr bool kByTokens = kBlocks > 2;  // a block finishes tokens of all rows
  static constexpr int kOwnRows = kByTokens ? 0 : kRows / kBlocks;  // else some rows of all tokens
  static constexpr int kPart = Plan::kDepth / kBlocks, kStepDepth = kTmaTiles * kTmaDepth;
  static constexpr int kSteps = kPart / kStepDepth;
  static_assert(Plan::kDepth % (kBlocks * kTurns * kStepDepth) == 0, "whole turns");
  static_assert(kStages % kTurns == 0, "a stage is always the same warpgroup's");
  static_assert(kGroups <= 2 && kGroups % kTokenGroups == 0);
  static_assert(kByTokens || kRows % (kBlocks * kTurns * kLineTile) == 0);
  static_assert(kTokens % (kTokenGroups > 1 ? kGroupRows : kRowTile) == 0);
  static_assert(kTokenGroups == 1 || Plan::kInner == 0, "totals of inner rows are of 64 tokens");

  static constexpr int kWarps = kGroups * kGroupWarps;
  // A warp copies. Two warpgroups with many sums take registers of a third, of which it is one.
  static constexpr int kCopyWarps = kTokenGroups > 1 ? kGroupWarps : 1;
  static constexpr int kWorkers = kWarps * kWarpLanes;
  static constexpr int kThreads = kWorkers + kCopyWarps * kWarpLanes;
  static constexpr int kRowBytes = kRows * kTmaRowBytes, kTokenBytes = kTokens * kTmaRowBytes;
  static constexpr int kInnerBytes = Plan::kInner * kTmaRowBytes;
  static constexpr int kWeightBytes = Plan::kRowTensors * kRowBytes;  // of a tile of all weights
  static constexpr int kTokensAt = kWeightBytes + kInnerBytes;
  static constexpr int kTmaBytes = kTokensAt + kTokenBytes;
  static constexpr int kStageBytes = kTmaTiles * kTmaBytes, kPipelineBytes = kStages * kStageBytes;
  // Partial sums from the other block arrive beside the pipeline, which this block may still read.
  using Sums = std::conditional_t<
      kByTokens, ScatterTokens<kBlocks, kGroups, kTurns, kRows / kLineTile, kTokens>,
      ReduceScatter<kBlocks, kGroups, kTurns, 1, kRows / kLineTile, kTokens / kTokenGroups>>;
  static constexpr int kSumsAt = kPipelineBytes + Plan::kExtraBytes;
  static constexpr int kVectorsAt = kSumsAt + Plan::kProducts * Sums::kIncomingBytes;
  static constexpr int kVectorBytes = kPart * static_cast<int>(sizeof(T));
  static constexpr int kTokenSumsAt = kVectorsAt + kVectors * kVectorBytes;
  static constexpr int kParts = kBlocks * kTurns;  // of a token's sum
  static constexpr int kTokenSumBytes = kTokens * static_cast<int>(sizeof(float));  // of a part
  static constexpr int kBarriersAt = kTokenSumsAt + kTokenSums * kParts * kTokenSumBytes;
  static constexpr int kUsedBytes =
      kBarriersAt + ((kBarriers + 1) * kStages + 2) * static_cast<int>(sizeof(Mbarrier));
  static constexpr int kBytes = kUsedBytes > kExclusiveBytes ? kUsedBytes : kExclusiveBytes;

  char* shared;
  int token_lines;  // of a TMA tile of tokens

  __device__ Mbarrier& barrier(int i) const {
    return reinterpret_cast<Mbarrier*>(shared + kBarriersAt)[i];
  }
  __device__ Mbarrier& full(int stage, int tma = 0) const {
    return barrier(stage * kBarriers + tma / kTmaTilesAtOnce);
  }
  __device__ Mbarrier& empty(int stage) const { return barrier(kBarriers * kStages + stage); }
  __device__ Mbarrier& reduced() const { return barrier((kBarriers + 1) * kStages); }
  __device__ Mbarrier& vectors_full() const { return barrier((kBarriers + 1) * kStages + 1); }
  __device__ float* token_sums(int i) const {  // [all parts, tokens]
    return reinterpret_cast<float*>(shared + kTokenSumsAt + i * kParts * kTokenSumBytes);
  }
  __device__ static int rank() { return kBlocks > 1 ? cluster_rank() : 0; }
  __device__ static int incoming_bytes() {
    return Plan::kProducts * Sums::sent_bytes(rank()) +
           kTokenSums * (kBlocks - 1) * kTurns * kTokenSumBytes;
  }
  __device__ bool is_producer() const {
    return kCopyWarps > 1 ? warp_index() >= kWarps : warp_index() == kWarps;
  }
  __device__ static bool copies() {  // of the producer's lanes
    return lane() == 0 && (kCopyWarps == 1 || warp_index() == kWarps);
  }
  __device__ static int group() { return warp_index() / kGroupWarps; }
  __device__ static int turn() { return kTokenGroups > 1 ? group() % kTurns : group(); }
  __device__ static int first_token() {
    const int first = kTokenGroups > 1 ? group() / kTurns * kGroupRows : 0;
    return first + warp_index() % kGroupWarps * kRowTile;
  }

  __device__ StageTile<RegisterOperandBlock> buffer(int stage, int tma) const {
    return {shared + stage * kStageBytes + tma * kTmaBytes, full(stage, tma)};
  }

  // The k of a step in the block's part of the depth: neighbouring clusters begin at different k
  // and wrap around.
  __device__ static int part_k(int step) {
    return (step + static_cast<int>(blockIdx.x) / kBlocks) % kSteps * kStepDepth;
  }
  __device__ static int step_k(int step) { return rank() * kPart + part_k(step); }

  // Copies this block's part of a vector; by the producer.
  __device__ void copy_vector(int i, const T* vector) const {
    const T* const from = vector + rank() * kPart;
    copy_bulk(shared + kVectorsAt + i * kVectorBytes, from, kVectorBytes, vectors_full());
  }

  // Initialises the barriers. The producer initialises its own and starts before the others are
  // there.
  __device__ void begin() const {
    if (is_producer() && copies()) {
      for (int i = 0; i < kBarriers * kStages; ++i) init(barrier(i), 1);
      if (kVectors > 0) init(vectors_full(), kVectors);
      fence_init();
    } else if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) init(empty(s), kGroupWarps * kTokenGroups);
      if (kBlocks > 1) init(reduced());
      fence_init();
      if (kBlocks > 1) expect(reduced(), incoming_bytes());
    }
    __syncwarp();
    if (kBlocks > 1) arrive_cluster();
    if (!is_producer()) start_together();
  }
  // By every warp, once, after begin(): the barriers of both blocks are there. (All warps call it:
  // racecheck hangs if some come to only one side of the cluster barrier.)
  __device__ static void wait_for_cluster() {
    if (kBlocks > 1) wait_cluster();
  }
  // By a warp that does not call begin().
  __device__ static void sync_cluster() {
    if (kBlocks > 1) arrive_cluster();
    wait_for_cluster();
  }
  __device__ static void start_together() { sync_threads<1, kThreads>(); }

  // By the producer warp (copy/tma_pipeline.cuh).
  template <class FindWeights, class CopyWeights, class CopyTokens>
  __device__ void copy(bool early, FindWeights prefetch_weights, CopyWeights copy_weights,
                       CopyTokens copy_tokens) const {
    copy(early, prefetch_weights, [] {}, copy_weights, copy_tokens);
  }
  template <class FindWeights, class CopyVectors, class CopyWeights, class CopyTokens>
  __device__ void copy(bool early, FindWeights prefetch_weights, CopyVectors copy_vectors,
                       CopyWeights copy_weights, CopyTokens copy_tokens) const {
    copy_steps(*this, early, prefetch_weights, copy_vectors, copy_weights, copy_tokens);
  }
};

// TMA tiles of rows as the B operand.
template <class Block>
struct SharedRows {
  const char* at;  // of the first tile
};

// The same of a [depth, rows] tensor, whose lines are the k.
template <class Block>
struct SharedColumns {
  const char* at;
};

// [M, N] fp32 of a warpgroup: of rows 8 m + 0..7 a lane has the accumulators of an mma.m16n8k16
// with 16 tokens.
template <int kRows>
struct SwappedAccum {
  float at[kRows / kLineTile][4] = {};
};

// The part of a stage that one barrier covers, for a consumer warpgroup: a warp has 16 tokens and
// all rows. In registers a lane has the A operand: of every 16 k the pairs 2t, 2t + 1 and 2t + 8,
// 2t + 9.
template <class Block>
struct RegisterOperandStep {
  using T = typename Block::T;
  static constexpr int kDepth = Block::kTmaTilesAtOnce * kTmaDepth;
  using Tokens = TokenFrag<T, kRowTile, kDepth>;
  Block block;
  int stage, tma, k;

  __device__ SharedRows<Block> rows(int i) const { return {block.buffer(stage, tma).rows(i)}; }
  __device__ SharedColumns<Block> columns(int i) const {
    return {block.buffer(stage, tma).rows(i)};
  }
  __device__ SharedRows<Block> inner() const { return {block.buffer(stage, tma).inner()}; }

  // Warps without tokens read nothing; their products are not used.
  __device__ Tokens tokens() const {
    Tokens tokens{};
    if (Block::first_token() >= Block::kTokens) return tokens;
    const int line = Block::first_token() + lane() % kRowTile;
    unrolled<Block::kTmaTilesAtOnce * kMmas>([&](int m) {
      const char* lines = block.buffer(stage, tma + m / kMmas).tokens();
      const int vec = 2 * (m % kMmas) + lane() / kRowTile;
      load_operand(tokens.at[0][m / 2], tokens.at[1][m / 2], m,
                   shared_address(lines) + swizzled_offset(line, vec));
    });
    return tokens;
  }

  __device__ DepthFrag<T, kDepth> vector(int i) const {
    return load_vector<T, kDepth>(block.shared + Block::kVectorsAt + i * Block::kVectorBytes +
                                  k * sizeof(T));
  }
};

// The n of one instruction: all rows, or an equal part of them.
__host__ __device__ constexpr int wgmma_n(int rows) {
  int parts = 1;
  while (rows / parts > kLargestWgmmaN || rows % (parts * kRowTile) != 0) ++parts;
  return rows / parts;
}

// accum[m, n] += sum over k of tokens[m, k] * rows[n, k], asynchronously: complete after
// end_products().
template <int kRows, class T, int kChunks, class Block>
__device__ void contract(SwappedAccum<kRows>& accum, SharedRows<Block> rows,
                         const Fragment<Dims::kTokensDepth, T, 2, kChunks>& tokens) {
  static_assert(kChunks * 2 == Block::kTmaTilesAtOnce * kMmas, "all of one barrier");
  constexpr int kSide = wgmma_n(kRows);
  begin_products();
  unrolled<Block::kTmaTilesAtOnce * kMmas>([&](int m) {
    const OperandA<T> operand(tokens.at[0][m / 2], tokens.at[1][m / 2], m);
    const char* weights = rows.at + m / kMmas * Block::kTmaBytes + m % kMmas * kMmaBytes;
#pragma unroll
    for (int n = 0; n < kRows; n += kSide) {
      auto& sums = reinterpret_cast<float (&)[kSide / kLineTile][4]>(accum.at[n / kLineTile]);
      Wgmma<T, kSide>::add(sums, operand.registers, descriptor(weights + n * kTmaRowBytes));
    }
  });
}

template <int kRows, class T, int kChunks, class Block>
__device__ void contract(SwappedAccum<kRows>& accum, SharedColumns<Block> columns,
                         const Fragment<Dims::kTokensDepth, T, 2, kChunks>& tokens) {
  static_assert(kChunks * 2 == Block::kTmaTilesAtOnce * kMmas, "all of one barrier");
  using Tiles = ColumnTiles<kRows>;
  constexpr int kLines = Tiles::kTileRows / kLineTile, kStep = kMmaDepth * Tiles::kLineBytes;
  begin_products();
  unrolled<Block::kTmaTilesAtOnce * kMmas>([&](int m) {
    const OperandA<T> operand(tokens.at[0][m / 2], tokens.at[1][m / 2], m);
    const char* weights = columns.at + m / kMmas * Block::kTmaBytes + m % kMmas * kStep;
#pragma unroll
    for (int i = 0; i < Tiles::kTiles; ++i) {
      auto& sums = reinterpret_cast<float (&)[kLines][4]>(accum.at[i * kLines]);
      const uint64_t tile = descriptor<Tiles::kLineBytes>(weights + i * Tiles::kBytes);
      Wgmma<T, Tiles::kTileRows, true>::add(sums, operand.registers, tile);
    }
  });
}

// The consumers' loop: body(step) for all steps, which the warpgroups take in turns.
template <class Block, class Body>
__device__ void multiply_register_operand(Block block, Body body) {
  if (Block::kCopyWarps > 1) take_registers();
  grid_dependency_wait();
  Block::wait_for_cluster();
  if (Block::kVectors > 0) wait(block.vectors_full(), 0);
  PipelineState<Block::kStages> place{Block::turn()};
#pragma unroll 1
  for (int step = Block::turn(); step < Block::kSteps; step += Block::kTurns) {
#pragma unroll
    for (int tma = 0; tma < Block::kTmaTiles; tma += Block::kTmaTilesAtOnce) {
      wait(block.full(place.stage, tma), place.parity);
      body(RegisterOperandStep<Block>{block, place.stage, tma,
                                      Block::part_k(step) + tma * kTmaDepth});
    }
    end_products();
    release_stage(block, place.stage);
    place.advance(Block::kTurns);
  }
}

}  // namespace mirage::tile
