// The host side of a launch of attention by wgmma: how many blocks, which cluster size.
#pragma once

#include "tile/attention/flash_decode/launch.cuh"
#include "tile/attention/wgmma/work.cuh"

namespace mirage::tile {

// WorkTiles that are equally long for certain are shared by clusters that run at once.
template <class Work>
LaunchShape wgmma_launch_shape(const AttentionArgs& args, int largest_cluster) {
  const int64_t work_tiles = sequence_work_tiles<Work::kRows>(args) * args.B;
  if (work_tiles == 0) return {0, 1};
  const int64_t most = static_cast<int64_t>(args.multiprocessors) * Work::kBlocks;
  const int64_t steps = ceil_div(larger(args.max_len, 1), Work::kKeys * Work::kGroups);
  const bool even = args.first_tokens == nullptr && (args.B == 1 || args.seq_lens == nullptr);
  for (int cluster = even ? largest_cluster : 1; cluster > 1; cluster /= 2) {
    if (cluster * work_tiles <= most && cluster <= steps)
      return {static_cast<int>(work_tiles) * cluster, cluster};
  }
  if (work_tiles >= most) {
    const int64_t even_share = ceil_div(work_tiles, ceil_div(work_tiles, most));
    return {static_cast<int>(10 * even_share >= 9 * most ? even_share : most), 1};
  }
  const int64_t items = most / work_tiles;
  return {static_cast<int>(work_tiles * (items < steps ? items : steps)), 1};
}

template <class Work>
int64_t wgmma_workspace(const AttentionArgs& args) {
  return wgmma_launch_shape<Work>(args, 1).blocks * Work::Space::kBlockBytes;
}

template <class Work>
cudaError_t launch_wgmma(void (*kernel)(AttentionArgs), const AttentionArgs& args,
                         cudaStream_t stream) {
  if (most_key_blocks<Work::kRows>(args) > kMostKeyBlocks) return cudaErrorInvalidValue;
  AttentionArgs given = with_step_boxes<typename Work::Element, Work::kKeys, Work::kDepth>(
      with_divisors<Work::kRows>(args));
  for (int largest = kMaxCluster;; largest /= 2) {
    const LaunchShape launch_shape = wgmma_launch_shape<Work>(args, largest);
    if (launch_shape.blocks == 0) return cudaSuccess;
    given.clusters = divisor(launch_shape.blocks / launch_shape.cluster);
    const Launch<AttentionArgs> call(
        kernel, {launch_shape.blocks, 1, Work::kThreads, Work::kBytes, launch_shape.cluster},
        stream);
    cudaError_t status = call.allow();
    int resident = 0;
    if (status == cudaSuccess && launch_shape.cluster > 1) status = call.resident(resident);
    if (status != cudaSuccess) return status;
    if (launch_shape.cluster == 1 || resident >= static_cast<int>(given.clusters.value))
      return call.start(given);
    largest = launch_shape.cluster;
  }
}

}  // namespace mirage::tile
