// Where a block of flash decode has what: in registers, or where in shared memory.
#pragma once

#include "tile/attention/flash_decode/pipeline.cuh"
#include "tile/attention/flash_decode/reduction.cuh"

namespace mirage::tile {

// The warps' pipelines, what warps and then blocks of a cluster reduce, the resident queries.
template <class T, int kDepth, class Knobs, int kMore>
struct FlashDecodeLayout {
  static constexpr int kRows = Knobs::kRows;
  using Pipeline = KeyPipeline<T, kDepth, Knobs, kMore>;
  using Reduction = WarpReduction<kRows, kDepth, Knobs::kWarps, Pipeline::kStageBytes>;
  using Cluster = ClusterReduction<kRows, kDepth>;

  static constexpr int kKeyWork = kKeyWorkOf<Knobs>;
  // A warp has no registers for keys that it computes with, for long ones that it sums too, or for
  // latents; nor for long queries while the first copies start.
  static constexpr bool kReadsLate = kMore > 0 || kKeyWork == 2 || (kKeyWork == 1 && kDepth > 192);
  static constexpr bool kReadsQueriesLate = kReadsLate || kDepth > 128;
  // Clusters whose sums are read at once.
  static constexpr int kTogether = kDepth > 128 && kMore == 0 ? 4 : kRows == kLineTile ? 16 : 8;

  // Few rows stay in registers, more lie in shared memory for all warps.
  static constexpr bool kResidentInShared = kRows * kDepth > 1024;
  static constexpr int kReductionAt = Pipeline::kBytes;
  static constexpr int kClusterAt = (kReductionAt + Reduction::kBytes + 15) / 16 * 16;
  static constexpr int kResidentAt = (kClusterAt + Cluster::kBytes + 127) / 128 * 128;
  static constexpr int kMoreResidentAt = kResidentAt + kRows * SharedLines<T, kDepth>::kPitch;
  static constexpr bool kHasResident =
      kResidentInShared || kKeyWork > 0;  // partitioned rows pass there
  static constexpr int kBytes =
      kHasResident ? kMoreResidentAt + kRows * SharedLines<T, kMore>::kPitch : kResidentAt;
};

}  // namespace mirage::tile
