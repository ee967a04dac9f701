// Cluster split-K: the two blocks of a cluster share rows of the weights and split the depth.
//
// Each block reads half as much of the tokens from L2 as a block with all of the depth would; with
// many tokens that read is the bottleneck. One producer warp copies TMA tiles of weights and tokens
// into a multistage pipeline. Two or three warpgroups multiply with all tokens: they take turns at
// steps, so that one loads operands while the other uses the tensor cores, or each has some rows.
// One more warpgroup transforms tokens where the muGraph computes with them: per-token sums, or
// scaled tokens in place of the copied ones. After the loop each block finishes half of the tokens
// (reduce.cuh).
#pragma once

#include "tile/copy/tma_pipeline.cuh"
#include "variants.h"

MIRAGE_SCHEDULE(ClusterSplitK)
MIRAGE_KNOB(Turns)
MIRAGE_KNOB(TmaTiles)
MIRAGE_KNOB(Sets)

namespace mirage::tile {

constexpr int kClusterBlocks = 2;  // of a cluster

// Bytes of the groups of rows (row_groups.cuh) that a block keeps.
template <class Plan, class = void>
constexpr int kGroupBytes = 0;
template <class Plan>
constexpr int kGroupBytes<Plan, std::void_t<decltype(Plan::kGroupBytes)>> = Plan::kGroupBytes;

// `Plan` has the constants of a block: Element, kRows, kTokens, kStages, kDepth (of both blocks),
// kRowTensors (weights that the loop reads), kVectors ([K] inputs), kTransforms (whether the loop
// computes with tokens), kRewrites (whether that replaces them), kProducts and kTokenSums (reduced
// after the loop), kGroups (warpgroups that multiply), kTurns (of which so many have the same rows
// and take turns), kTmaTiles (of a stage), kSets (steps in flight with registers of their own).
// Weights may have elements of 8 bits, which warpgroups convert (eight_bits.cuh).
template <class Plan, class RowElement_ = typename Plan::Element>
struct ClusterSplitKBlock {
  using T = typename Plan::Element;
  using RowElement = RowElement_;
  static constexpr bool kRewrites = Plan::kRewrites;
  static constexpr int kRows = Plan::kRows, kTokens = Plan::kTokens, kStages = Plan::kStages;
  static constexpr int kTmaTiles = Plan::kTmaTiles, kStepDepth = kTmaTiles * kTmaDepth;
  static constexpr int kBarriers = 1,
                       kTmaTilesAtOnce = kTmaTiles;  // one barrier for all tiles of a stage
  static constexpr int kPart = Plan::kDepth / kClusterBlocks, kSteps = kPart / kStepDepth;
  static_assert(Plan::kDepth % (kClusterBlocks * kStepDepth) == 0, "whole steps");

  static constexpr int kGroups = Plan::kGroups, kTurns = Plan::kTurns, kSets = Plan::kSets;
  static constexpr int kColumns = kGroups / kTurns, kProductWarps = kGroups * kGroupWarps;
  static_assert(kGroups % kTurns == 0 && kStages % kTurns == 0 && kSteps % kTurns == 0);
  // Rows of a warpgroup, in whole eights; the last warpgroup may have fewer.
  static constexpr int kOwnRows = (kRows / kLineTile + kColumns - 1) / kColumns * kLineTile;
  static constexpr int kTiles = (kOwnRows + kGroupRows - 1) / kGroupRows;
  static_assert(kRows % kLineTile == 0 && kTokens % (kLineTile * kGroupWarps) == 0);

  static constexpr int kTransformWarps = Plan::kTransforms ? kGroupWarps : 0;
  static constexpr int kProducerWarp = kProductWarps + kTransformWarps;  // its warp
  static constexpr int kWorkers = kProducerWarp * kWarpLanes, kThreads = kWorkers + kWarpLanes;
  static constexpr int kCopyWarps = 1;

  static constexpr int kRowLineBytes = kTmaDepth * static_cast<int>(sizeof(RowElement));
  static constexpr int kRowBytes = kRows * kRowLineBytes, kTokenBytes = kTokens * kTmaRowBytes;
  static constexpr int kWeightBytes = Plan::kRowTensors * kRowBytes;  // of a tile of all weights
  static constexpr int kTokensAt = kWeightBytes, kTmaBytes = kTokensAt + kTokenBytes;
  static constexpr int kStageBytes = kTmaTiles * kTmaBytes;
  // An instruction takes 64 rows; what it reads past the last row of a tile is not used.
  static constexpr int kOverrun =
      ((kColumns - 1) * kOwnRows + kTiles * kGroupRows - kRows) * kRowLineBytes;
  static constexpr int kVectorBytes = kPart * static_cast<int>(sizeof(T));
  static constexpr int kPipelineBytes = kStages * kStageBytes;
  static constexpr int kVectorsAt =
      kPipelineBytes + (kOverrun + kSwizzleAtomBytes - 1) / kSwizzleAtomBytes * kSwizzleAtomBytes;
  // The reductions' shared memory lies beside the pipeline, which the other block may still read.
  using Sums =
      ReduceScatter<kClusterBlocks, kGroups, kTurns, kTiles, kTokens / kTokenTile, kOwnRows>;
  static constexpr int kHalf = kTokens / kClusterBlocks;  // of the tokens
  static constexpr int kHalfBytes = kHalf * static_cast<int>(sizeof(float));
  static constexpr int kSumsBytes = Sums::kIncomingBytes + Sums::kLocalBytes;
  static constexpr int kSumsAt = kVectorsAt + Plan::kVectors * kVectorBytes;
  static constexpr int kTokenSumsAt = kSumsAt + Plan::kProducts * kSumsBytes;
  static constexpr int kGroupsAt = kTokenSumsAt + Plan::kTokenSums * kClusterBlocks * kHalfBytes;
  static constexpr int kBarriersAt = kGroupsAt + kGroupBytes<Plan>;
  static constexpr int kIncomingBytes =
      Plan::kProducts * Sums::kSentBytes + Plan::kTokenSums * kHalfBytes;
  static constexpr int kBarrierCount = 3 * kStages + 2;
  static constexpr int kUsedBytes =
      kBarriersAt + kBarrierCount * static_cast<int>(sizeof(Mbarrier));
  static constexpr int kBytes = kUsedBytes > kExclusiveBytes ? kUsedBytes : kExclusiveBytes;

  char* shared;
  int rank;
  int token_lines;  // of a TMA tile of tokens
  // The shuffle tells the compiler that all lanes agree: where warps might diverge, it does not
  // overlap wgmma with computing the next operands.
  int warp = __shfl_sync(~0u, warp_index(), 0);

  __device__ Mbarrier* barriers() const {
    return reinterpret_cast<Mbarrier*>(shared + kBarriersAt);
  }
  __device__ Mbarrier& full(int stage, int = 0) const { return barriers()[stage]; }
  __device__ Mbarrier& empty(int stage) const { return barriers()[kStages + stage]; }
  __device__ Mbarrier& prepared(int stage) const { return barriers()[2 * kStages + stage]; }
  __device__ Mbarrier& ready(int stage) const { return kRewrites ? prepared(stage) : full(stage); }
  __device__ Mbarrier& vectors_full() const { return barriers()[3 * kStages]; }
  __device__ Mbarrier& reduced() const { return barriers()[3 * kStages + 1]; }

  __device__ ReduceBuffers sums(int product) const {
    char* const at = shared + kSumsAt + product * kSumsBytes;
    return {at, at + Sums::kIncomingBytes};
  }
  __device__ float* token_sums(int i) const {  // [both blocks, half of the tokens]
    return reinterpret_cast<float*>(shared + kTokenSumsAt + i * kClusterBlocks * kHalfBytes);
  }

  __device__ int product_group() const { return warp / kGroupWarps; }
  __device__ int own_row() const { return product_group() / kTurns * kOwnRows; }
  __device__ bool is_producer() const { return warp == kProducerWarp; }
  __device__ static bool copies() { return lane() == 0; }  // of the producer's lanes
  __device__ bool transforms() const { return Plan::kTransforms && warp >= kProductWarps; }
  // Whether a thread finishes any element, of so many tokens that are left. Asked once, before sums
  // are added: without branches in between all loads are issued first (10.84 us against 10.93).
  __device__ bool finishes(int tokens) const {
    return warp < kProductWarps && tokens > rank * kHalf;
  }

  __device__ StageTile<ClusterSplitKBlock> buffer(int stage, int tma) const {
    return {shared + stage * kStageBytes + tma * kTmaBytes, full(stage)};
  }

  // Copies this block's part of a vector; by the producer.
  __device__ void copy_vector(int i, const T* vector, int k) const {
    copy_bulk(shared + kVectorsAt + i * kVectorBytes, vector + k, kVectorBytes, vectors_full());
  }

  // The k of a step: neighbouring clusters begin at different k and wrap around.
  __device__ int part_k(int step) const {
    return (step + static_cast<int>(blockIdx.x) / kClusterBlocks) % kSteps * kStepDepth;
  }

  __device__ int step_k(int step) const { return rank * kPart + part_k(step); }

  using Place = PipelineState<kStages>;

  // Initialises the barriers and signals the other block. The producer initialises its own; neither
  // side waits for the other until the producer has begun (start_together).
  __device__ void begin() const {
    if (is_producer() && lane() == 0) {
      for (int s = 0; s < kStages; ++s) init(full(s), 1);
      init(vectors_full(), Plan::kVectors > 0 ? Plan::kVectors : 1);
      fence_init();
    } else if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        init(empty(s), kProductWarps / kTurns + kTransformWarps);
        if (kRewrites) init(prepared(s), kGroupWarps);
      }
      init(reduced(), 1);
      fence_init();
      expect(reduced(), kIncomingBytes);
    }
    __syncwarp();
    arrive_cluster();
    if (!is_producer()) start_together();
  }
  __device__ static void start_together() { sync_threads<1, kThreads>(); }
  // By every warp: racecheck hangs if some come to only one side of the cluster barrier.
  __device__ static void wait_for_cluster() { wait_cluster(); }

  // By the producer warp (copy/tma_pipeline.cuh).
  template <class FindWeights, class CopyVectors, class CopyWeights, class CopyTokens>
  __device__ void copy(bool early, FindWeights prefetch_weights, CopyVectors copy_vectors,
                       CopyWeights copy_weights, CopyTokens copy_tokens) const {
    const auto copy_own_vectors = [&] { copy_vectors(rank * kPart); };
    copy_steps(*this, early, prefetch_weights, copy_own_vectors, copy_weights, copy_tokens);
  }
};

}  // namespace mirage::tile
