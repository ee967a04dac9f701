// The host side of a launch of flash decode: cluster size, grid, workspace.
#pragma once

#include "tile/attention/launch_heuristic.cuh"
#include "tile/attention/flash_decode/work.cuh"

namespace mirage::tile {

using AttentionKernelFn = void (*)(AttentionArgs);

// Calls whose crews run at once. Where keys are computed, more multiprocessors are worth more than
// the beginning of the next call (64/8 heads, L 4096, QK-LayerNorm: 11.7 us instead of 12.6).
template <class Work>
constexpr int kCallsAtOnce = Work::kKeyWork == 2 && Work::kBlocks == 1 ? 1 : 2;

// Blocks of a crew, `most` or fewer, if so many calls run at once; 1 where that is no gain.
template <class Work>
int crew_beside_another(const AttentionArgs& args, int64_t most) {
  const int64_t segments = sequence_segments<Work::kRows>(args) * args.B;
  if (!Work::kBeginsEarly || !kHasCrews<Work::kDepth> || !may_leave_room<Work::kRows>(args))
    return 1;
  const int64_t room = segments == 0 ? 1 : most_blocks<Work>(args) / kCallsAtOnce<Work> / segments;
  const int crew = even_crew<Work>(args, room < most ? room : most);
  if (20 * segments * crew < 6 * most_blocks<Work>(args)) return 1;
  // A step takes about as long where lines are short, and longer where keys are normed: crews that
  // have part of the multiprocessors then take too many.
  const int64_t steps = ceil_div(longest_units(args), int64_t{crew} * Work::kWarps);
  if (Work::kBlocks == 1 && Work::kDepth < 128 && steps > kMostShortSteps) return 1;
  if (Work::kKeyWork == 1 && steps > kMostSummingSteps) return 1;
  return Work::kKeyWork == 2 && steps > kMostComputingSteps ? 1 : crew;
}

template <class Work>
int64_t flash_decode_workspace(const AttentionArgs& args) {
  const int64_t segments = sequence_segments<Work::kRows>(args) * args.B;
  const int64_t beside = segments * crew_beside_another<Work>(args, kMostCrew);
  const int64_t blocks = crowd_of<Work>(args).blocks;
  return (blocks > beside ? blocks : beside) * Work::Space::kBlockBytes;
}

// The largest crews of which more than so many run at once. Clusters do not fit evenly: the driver
// knows how many run, and a thread remembers, for it takes microseconds.
template <class Work>
cudaError_t find_most(int& found, AttentionKernelFn kernel, int64_t crews) {
  struct Answer {
    AttentionKernelFn kernel;
    int64_t crews;
    int device, most;
  };
  static thread_local Answer answers[kAnswers];
  Answer& known = answers[crews % kAnswers];
  int device = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (known.kernel != kernel || known.crews != crews || known.device != device) {
    Answer asked{kernel, crews, device, kMostCrew + 1};
    for (int resident = 0; status == cudaSuccess && resident <= crews;) {
      if (--asked.most == 1) break;
      const Grid grid{asked.most, 1, Work::kThreads, Work::kBytes, asked.most};
      const Launch<AttentionArgs> call(kernel, grid, nullptr);
      status = call.allow();
      if (status == cudaSuccess) status = call.resident(resident);
    }
    if (status == cudaSuccess) known = asked;
  }
  found = known.most;
  return status;
}

// Crews that leave room for another call's, or what there is room for without.
template <class Work>
cudaError_t find_crowd(Crowd& found, AttentionKernelFn kernel, const AttentionArgs& args) {
  found = crowd_of<Work>(args);
  if (crew_beside_another<Work>(args, kMostCrew) == 1) return cudaSuccess;
  const int64_t segments = sequence_segments<Work::kRows>(args) * args.B;
  int most = 1;
  const cudaError_t status = find_most<Work>(most, kernel, kCallsAtOnce<Work> * segments);
  const int crew = status == cudaSuccess ? crew_beside_another<Work>(args, most) : 1;
  if (crew > 1) found = {static_cast<int>(segments) * crew, crew};
  return status;
}

// Crews must all run at once, or one could wait for another that waits for its place.
inline cudaError_t launch_crews(AttentionKernelFn kernel, Grid grid, AttentionArgs args,
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
cudaError_t launch_flash_decode(AttentionKernelFn kernel, const AttentionArgs& args,
                                cudaStream_t stream) {
  if (most_units<Work::kRows>(args) > kMostUnits) return cudaErrorInvalidValue;
  Crowd crowd{};
  const cudaError_t status = find_crowd<Work>(crowd, kernel, args);
  if (status != cudaSuccess || crowd.blocks == 0) return status;
  return launch_crews(kernel, {crowd.blocks, 1, Work::kThreads, Work::kBytes, crowd.crew},
                      Work::Ring::with_boxes(with_divisors<Work::kRows>(args)), stream);
}

}  // namespace mirage::tile
