// The producer warp of a warp-specialised block: TMA copies into a multistage pipeline.
//
// Blocks with register operands (register_operand/block.cuh) and blocks of a cluster split-K
// (cluster_split_k/block.cuh) have kStages stages of kTmaTiles tiles each. A stage has kBarriers
// `full` barriers, each for kTmaTilesAtOnce tiles, and one `empty` barrier.
#pragma once

#include "tile/grid.cuh"
#include "tile/reduce/scatter.cuh"

namespace mirage::tile {

template <int kMaps>
struct TmaArgs {
  LaunchArgs call;
  CUtensorMap maps[kMaps];
};

// A tensor, and the lines of its TMA tiles, with their elements.
struct TiledTensor {
  Tensor tensor;
  int lines, elements = kTmaDepth;
};

// The tiles of a result of `rows` and `tokens`; so many blocks share rows.
template <class Block, class Rows>
Grid tma_grid(int64_t tokens, Rows rows, int blocks, int cluster = 1) {
  const int64_t row_tiles = tiles_of(rows, Block::kRows) * blocks;
  return {row_tiles, ceil_div(tokens, Block::kTokens), Block::kThreads, Block::kBytes, cluster};
}

template <class T, int kMaps>
cudaError_t launch_tma(void (*kernel)(TmaArgs<kMaps>), Grid grid, const LaunchArgs& args,
                       const TiledTensor (&tensors)[kMaps], cudaStream_t stream) {
  TmaArgs<kMaps> given{args};
  for (int i = 0; i < kMaps; ++i) {
    const auto& [tensor, lines, elements] = tensors[i];
    const cudaError_t status = encode<T>(&given.maps[i], tensor, lines, elements);
    if (status != cudaSuccess) return status;
  }
  return launch(kernel, grid, given, stream);
}

// With more than half of a multiprocessor's shared memory a block runs alone there. Two blocks on
// one multiprocessor would leave others idle.
constexpr int kExclusiveBytes = 116 * 1024;

// Weights of the first steps that are read before the previous kernel has ended: into shared memory
// where the caller allows it, else into L2. More delay the first tokens: 32 KB took 10.9 us, 64 KB
// 11.8 (4096 -> 4096, 64 tokens); into L2 11.0, and 11.3 with 48 KB or none.
constexpr int kEarlyBytes = 32 * 1024;

// The same in steps, rounded: at least one, at most all stages.
__host__ __device__ constexpr int early_steps(int step_bytes, int stages) {
  const int steps = (kEarlyBytes + step_bytes / 2) / step_bytes;
  return steps < 1 ? 1 : steps < stages ? steps : stages;
}

// A stage of a pipeline and the parity of its barriers' phase.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance(int steps = 1) {
    stage += steps;
    if (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
};

// Lines of a tile of tokens. A tile that reaches beyond the tensor takes longer than a smaller one
// (4096 -> 4096, 40 tokens: 14.0 us with 64 lines, 11.8 with 40), so a single tile has only the
// tokens that exist. The rest of the stage is multiplied but its results are not used.
template <class Block>
__host__ __device__ int token_lines(int64_t tokens) {
  return tokens < Block::kTokens ? static_cast<int>(tokens) : Block::kTokens;
}

// One TMA tile of a stage, for the producer.
template <class Block>
struct StageTile {
  char* at;
  Mbarrier& full;
  __device__ char* rows(int i) const { return at + i * Block::kRowBytes; }
  __device__ char* inner() const { return at + Block::kWeightBytes; }
  __device__ char* tokens() const { return at + Block::kTokensAt; }
};

// Bytes of a stage that no copy fills: those of tokens that do not exist.
template <class Block>
__device__ int missing_bytes(const Block& block) {
  return Block::kTmaTiles * (Block::kTokens - block.token_lines) * kTmaRowBytes;
}

// Three warpgroups begin with 168 registers a thread: one that only copies leaves most of its own
// to the two that multiply. By all threads of a warpgroup.
__device__ inline void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }
__device__ inline void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); }

// The steps after the first kStages: each waits until the consumers have released its stage.
template <class Block, class Copy>
__device__ void copy_rest(const Block& block, bool runs, Copy copy) {
  __syncwarp();
  if (Block::kCopyWarps > 1) give_registers();
  Block::start_together();
  Block::wait_for_cluster();
  PipelineState<Block::kStages> place;
#pragma unroll 1
  for (int step = Block::kStages; runs && step < Block::kSteps; ++step) {
    wait(block.empty(place.stage), place.parity);
    copy(step, place.stage);
    place.advance();
  }
}

// Copies vectors whole, then step after step. With `early` the weights of the first steps are read
// before the previous kernel has ended; without it they are prefetched into L2 meanwhile.
template <class Block, class FindWeights, class CopyVectors, class CopyWeights, class CopyTokens>
__device__ void copy_steps(const Block& block, bool early, FindWeights prefetch_weights,
                           CopyVectors copy_vectors, CopyWeights copy_weights,
                           CopyTokens copy_tokens) {
  constexpr int kTmaTiles = Block::kTmaTiles, kAtOnce = Block::kTmaTilesAtOnce;
  constexpr int kFirst = Block::kStages < Block::kSteps ? Block::kStages : Block::kSteps;
  constexpr int kAhead = early_steps(kTmaTiles * Block::kWeightBytes, kFirst);
  const bool runs = Block::copies();
  const int bytes = Block::kStageBytes - missing_bytes(block);
  const auto k = [&](int step, int tma) { return block.step_k(step) + tma * kTmaDepth; };
  const auto weights = [&](int step, int stage, int first) {  // of one barrier's tiles
    expect(block.full(stage, first), bytes / Block::kBarriers);
    for (int b = first; b < first + kAtOnce; ++b) copy_weights(block.buffer(stage, b), k(step, b));
  };
  const auto tokens = [&](int step, int stage, int first) {
    for (int b = first; b < first + kAtOnce; ++b) copy_tokens(block.buffer(stage, b), k(step, b));
  };
  for (int s = 0; runs && s < kAhead; ++s) {
    for (int b = 0; b < kTmaTiles; b += kAtOnce) {
      if (early) {
        weights(s, s, b);
      } else {
        for (int i = b; i < b + kAtOnce; ++i) prefetch_weights(k(s, i));
      }
    }
  }
  if (runs && early) copy_vectors();
  grid_dependency_wait();
  for (int s = 0; runs && s < kFirst; ++s) {
    for (int b = 0; b < kTmaTiles; b += kAtOnce) {
      if (!early || s >= kAhead) weights(s, s, b);
      if (!early && s + b == 0) copy_vectors();
      tokens(s, s, b);
    }
  }
  copy_rest(block, runs, [&](int step, int stage) {
    for (int b = 0; b < kTmaTiles; b += kAtOnce) {
      weights(step, stage, b);
      tokens(step, stage, b);
    }
  });
}

// The same without PDL: everything was written before the kernel started.
template <class Block, class CopyWeights, class CopyTokens>
__device__ void copy_when_ready(const Block& block, CopyWeights copy_weights,
                                CopyTokens copy_tokens) {
  static_assert(Block::kBarriers == 1, "a step has one");
  const int missing = missing_bytes(block);
  const bool runs = Block::copies();
  const auto copy = [&](int step, int stage) {
    expect(block.full(stage), Block::kStageBytes - missing);
    for (int b = 0; b < Block::kTmaTiles; ++b) {
      const auto buffer = block.buffer(stage, b);
      const int k = block.step_k(step) + b * kTmaDepth;
      copy_weights(buffer, k);
      copy_tokens(buffer, k);
    }
  };
  for (int s = 0; runs && s < min(Block::kStages, Block::kSteps); ++s) copy(s, s);
  copy_rest(block, runs, copy);
}

// Called by all lanes of a consumer warp: it has read the stage, which may be overwritten.
template <class Block>
__device__ void release_stage(const Block& block, int stage) {
  __syncwarp();
  if (lane() == 0) arrive(block.empty(stage));
}

}  // namespace mirage::tile
