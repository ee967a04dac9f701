// Attention as emitted kernels ask for it: what a block does, and the host side of a launch.
#pragma once

#include "tile/attention_work.cuh"

namespace mirage::tile {

template <class Work>
int64_t attention_workspace(const AttentionArgs& args) {
  return crowd_of<Work>(args).blocks * Work::Space::kBlockBytes;
}

// Crews must all run at once, or one could wait for another that waits for its place.
inline cudaError_t launch_crews(void (*kernel)(AttentionArgs), Grid grid, AttentionArgs args,
                                cudaStream_t stream) {
  if (grid.cluster > 1) {
    args.crews = divisor(grid.row_tiles / grid.cluster);
    const Launch<AttentionArgs> call(kernel, grid, stream);
    int resident = 0;
    cudaError_t status = call.allow();
    if (status == cudaSuccess) status = call.resident(resident);
    if (status != cudaSuccess) return status;
    if (resident >= static_cast<int>(args.crews.value)) return call.start(args);
    grid.cluster = 1;
  }
  args.crews = divisor(grid.row_tiles);
  return launch(kernel, grid, args, stream);
}

template <class Work>
cudaError_t launch_attention(void (*kernel)(AttentionArgs), const AttentionArgs& args,
                             cudaStream_t stream) {
  if (most_units<Work::kRows>(args) > kMostUnits) return cudaErrorInvalidValue;
  const Crowd crowd = crowd_of<Work>(args);
  if (crowd.blocks == 0) return cudaSuccess;
  return launch_crews(kernel, {crowd.blocks, 1, Work::kThreads, Work::kBytes, crowd.crew},
                      Work::Ring::with_boxes(with_divisors<Work::kRows>(args)), stream);
}

}  // namespace mirage::tile
