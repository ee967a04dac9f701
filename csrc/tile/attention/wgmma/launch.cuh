// The host side of a launch of attention by wgmma: how many blocks, which cluster size.
#pragma once

#include "tile/attention/flash_decode/launch.cuh"
#include "tile/attention/wgmma/work.cuh"

namespace mirage::tile {

// Segments that are equally long for certain are shared by crews that run at once.
template <class Work>
Crowd wgmma_crowd(const AttentionArgs& args, int largest_crew) {
  const int64_t segments = sequence_segments<Work::kRows>(args) * args.B;
  if (segments == 0) return {0, 1};
  const int64_t most = static_cast<int64_t>(args.multiprocessors) * Work::kBlocks;
  const int64_t steps = ceil_div(larger(args.max_len, 1), Work::kKeys * Work::kGroups);
  const bool even = args.first_tokens == nullptr && (args.B == 1 || args.seq_lens == nullptr);
  for (int crew = even ? largest_crew : 1; crew > 1; crew /= 2) {
    if (crew * segments <= most && crew <= steps) return {static_cast<int>(segments) * crew, crew};
  }
  if (segments >= most) {
    const int64_t even_share = ceil_div(segments, ceil_div(segments, most));
    return {static_cast<int>(10 * even_share >= 9 * most ? even_share : most), 1};
  }
  const int64_t parts = most / segments;
  return {static_cast<int>(segments * (parts < steps ? parts : steps)), 1};
}

template <class Work>
int64_t wgmma_workspace(const AttentionArgs& args) {
  return wgmma_crowd<Work>(args, 1).blocks * Work::Space::kBlockBytes;
}

template <class Work>
cudaError_t launch_wgmma(void (*kernel)(AttentionArgs), const AttentionArgs& args,
                        cudaStream_t stream) {
  if (most_units<Work::kRows>(args) > kMostUnits) return cudaErrorInvalidValue;
  AttentionArgs given = with_step_boxes<typename Work::Element, Work::kKeys, Work::kDepth>(
      with_divisors<Work::kRows>(args));
  for (int largest = kMostCrew;; largest /= 2) {
    const Crowd crowd = wgmma_crowd<Work>(args, largest);
    if (crowd.blocks == 0) return cudaSuccess;
    given.crews = divisor(crowd.blocks / crowd.crew);
    const Launch<AttentionArgs> call(
        kernel, {crowd.blocks, 1, Work::kThreads, Work::kBytes, crowd.crew}, stream);
    cudaError_t status = call.allow();
    int resident = 0;
    if (status == cudaSuccess && crowd.crew > 1) status = call.resident(resident);
    if (status != cudaSuccess) return status;
    if (crowd.crew == 1 || resident >= static_cast<int>(given.crews.value))
      return call.start(given);
    largest = crowd.crew;
  }
}

}  // namespace mirage::tile
