// Attention as emitted kernels ask for it: what a block does, and the host side of a launch.
//
// Few query rows are flash decode: keys take the M side of mma, so that few rows waste nothing, and
// the warps of a block take different keys. Many rows take the M side of wgmma themselves.
#pragma once

#include "tile/attention/flash_decode/work.cuh"
#include "tile/attention/launch_heuristic.cuh"
#include "tile/attention/wgmma/latents.cuh"
#include "tile/attention/wgmma/work.cuh"

MIRAGE_SCHEDULE(FlashAttention)
MIRAGE_KNOB(Keys)
MIRAGE_KNOB(KeySums)
MIRAGE_KNOB(Dynamic)
MIRAGE_KNOB(Producers)
MIRAGE_KNOB(Parts)

namespace mirage::tile {

using AttentionKernelFn = void (*)(AttentionArgs);

// Calls whose clusters run at once. Where keys are computed, more multiprocessors are worth more
// than the beginning of the next call (64/8 heads, L 4096, QK-LayerNorm: 11.7 us instead of 12.6).
template <class Work>
constexpr int kCallsAtOnce = Work::kKeyWork == 2 && Work::kBlocks == 1 ? 1 : 2;

// Blocks of a cluster, `most` or fewer, if so many calls run at once; 1 where that is no gain.
template <class Work>
int cluster_beside_another(const AttentionArgs& args, int64_t most) {
  const int64_t work_tiles = sequence_work_tiles<Work::kRows>(args) * args.B;
  if (!Work::kBeginsEarly || !kHasClusters<Work::kDepth> || !may_leave_room<Work::kRows>(args))
    return 1;
  const int64_t room =
      work_tiles == 0 ? 1 : most_blocks<Work>(args) / kCallsAtOnce<Work> / work_tiles;
  const int cluster = even_cluster<Work>(args, room < most ? room : most);
  if (20 * work_tiles * cluster < 6 * most_blocks<Work>(args)) return 1;
  // A step takes about as long where lines are short, and longer where keys are normed: clusters
  // that have part of the multiprocessors then take too many.
  const int64_t steps = ceil_div(longest_key_blocks(args), int64_t{cluster} * Work::kWarps);
  if (Work::kBlocks == 1 && Work::kDepth < 128 && steps > kMostShortSteps) return 1;
  if (Work::kKeyWork == 1 && steps > kMostSummingSteps) return 1;
  return Work::kKeyWork == 2 && steps > kMostComputingSteps ? 1 : cluster;
}

template <class Work>
int64_t flash_decode_workspace(const AttentionArgs& args) {
  const int64_t work_tiles = sequence_work_tiles<Work::kRows>(args) * args.B;
  const int64_t beside = work_tiles * cluster_beside_another<Work>(args, kMaxCluster);
  const int64_t blocks = launch_shape_of<Work>(args).blocks;
  return (blocks > beside ? blocks : beside) * Work::Space::kBlockBytes;
}

// The largest clusters of which more than so many run at once. Clusters do not fit evenly: the
// driver knows how many run, and a thread remembers, for it takes microseconds.
template <class Work>
cudaError_t find_most(int& found, AttentionKernelFn kernel, int64_t clusters) {
  struct Answer {
    AttentionKernelFn kernel;
    int64_t clusters;
    int device, most;
  };
  static thread_local Answer answers[kAnswers];
  Answer& known = answers[clusters % kAnswers];
  int device = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (known.kernel != kernel || known.clusters != clusters || known.device != device) {
    Answer asked{kernel, clusters, device, kMaxCluster + 1};
    for (int resident = 0; status == cudaSuccess && resident <= clusters;) {
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

// Clusters that leave room for another call's, or what there is room for without.
template <class Work>
cudaError_t find_launch_shape(LaunchShape& found, AttentionKernelFn kernel,
                              const AttentionArgs& args) {
  found = launch_shape_of<Work>(args);
  if (cluster_beside_another<Work>(args, kMaxCluster) == 1) return cudaSuccess;
  const int64_t work_tiles = sequence_work_tiles<Work::kRows>(args) * args.B;
  int most = 1;
  const cudaError_t status = find_most<Work>(most, kernel, kCallsAtOnce<Work> * work_tiles);
  const int cluster = status == cudaSuccess ? cluster_beside_another<Work>(args, most) : 1;
  if (cluster > 1) found = {static_cast<int>(work_tiles) * cluster, cluster};
  return status;
}

// Clusters must all run at once, or one could wait for another that waits for its place: without
// room for them nothing starts.
inline cudaError_t start_if_resident(bool& started, AttentionKernelFn kernel, const Grid& grid,
                                     AttentionArgs args, cudaStream_t stream) {
  args.clusters = divisor(grid.row_tiles / grid.cluster);
  const Launch<AttentionArgs> call(kernel, grid, stream);
  cudaError_t status = call.allow();
  int resident = 0;
  if (status == cudaSuccess && grid.cluster > 1) status = call.resident(resident);
  if (status != cudaSuccess) return status;
  started = grid.cluster == 1 || resident >= static_cast<int>(args.clusters.value);
  return started ? call.start(args) : cudaSuccess;
}

template <class Work>
cudaError_t launch_flash_decode(AttentionKernelFn general, AttentionKernelFn plain,
                                const AttentionArgs& args, cudaStream_t stream) {
  if (most_key_blocks<Work::kRows>(args) > kMostKeyBlocks) return cudaErrorInvalidValue;
  const AttentionArgs given = Work::Pipeline::with_boxes(with_divisors<Work::kRows>(args));
  const AttentionKernelFn kernel = is_plain(given) ? plain : general;
  LaunchShape launch_shape{};
  const cudaError_t status = find_launch_shape<Work>(launch_shape, kernel, args);
  if (status != cudaSuccess || launch_shape.blocks == 0) return status;
  Grid grid{launch_shape.blocks, 1, Work::kThreads, Work::kBytes, launch_shape.cluster};
  for (bool started = false;; grid.cluster = 1) {
    const cudaError_t ended = start_if_resident(started, kernel, grid, given, stream);
    if (started || ended != cudaSuccess) return ended;
  }
}

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
AttentionArgs with_wgmma_boxes(const AttentionArgs& args) {
  using T = typename Work::Element;
  constexpr int kSecondDepth = Work::Pipeline::kSecondDepth;
  return with_step_boxes<T, Work::kKeys, Work::kDepth, kSecondDepth>(
      with_divisors<Work::kRows>(args));
}

template <class Work>
cudaError_t launch_wgmma(AttentionKernelFn kernel, const AttentionArgs& args, cudaStream_t stream) {
  if (most_key_blocks<Work::kRows>(args) > kMostKeyBlocks) return cudaErrorInvalidValue;
  const AttentionArgs given = with_wgmma_boxes<Work>(args);
  bool started = false;
  for (int largest = kMaxCluster;;) {
    const LaunchShape shape = wgmma_launch_shape<Work>(args, largest);
    if (shape.blocks == 0) return cudaSuccess;
    const Grid grid{shape.blocks, 1, Work::kThreads, Work::kBytes, shape.cluster};
    const cudaError_t status = start_if_resident(started, kernel, grid, given, stream);
    if (started || status != cudaSuccess) return status;
    largest = shape.cluster / 2;
  }
}

template <class Work, class After>
cudaError_t launch_latents(AttentionKernelFn kernel, const AttentionArgs& args,
                           cudaStream_t stream) {
  if (most_key_blocks<Work::kRows>(args) > kMostKeyBlocks) return cudaErrorInvalidValue;
  AttentionArgs given = with_wgmma_boxes<Work>(args);
  const int blocks = latent_blocks<Work>(args);
  if (blocks == 0) return cudaSuccess;
  given.clusters = divisor(blocks);
  const Grid grid{blocks, 1, Work::kThreads, Work::kBytes};
  const cudaError_t status = launch(kernel, grid, given, stream);
  if (status != cudaSuccess) return status;
  using Combine = LatentCombine<Work, After>;
  const int64_t tiles = int64_t{given.sequence_work_tiles.value} * args.B;
  const Grid rows{tiles, Combine::row_blocks(args, tiles), Combine::kThreads, 0};
  return launch(combine_latents<Work, After>, rows, given, stream);
}

// Which of them a block runs follows from the rows of its tile.
template <class Config>
constexpr bool kUsesWgmma = Config::kRows >= kGroupRows;

// Of latent attention, keys have kMore elements beside those that are values, too.
template <class T, int kDepth, class Config, int kMore>
struct WorkOf {
  using Wgmma = WgmmaLatents<T, kDepth, Config, kMore>;
};
template <class T, int kDepth, class Config>
struct WorkOf<T, kDepth, Config, 0> {
  using Wgmma = WgmmaAttention<T, kDepth, Config>;
};
template <class T, int kDepth, class Config, int kMore = 0>
using AttentionWork =
    std::conditional_t<kUsesWgmma<Config>, typename WorkOf<T, kDepth, Config, kMore>::Wgmma,
                       FlashDecode<T, kDepth, Config, kMore>>;

template <class Work>
constexpr bool kHasLatents = Work::Pipeline::kParts > 1;

// Conditions of the variants of a shape.
template <int... kNumbers>
struct FewTiles {
  static bool holds(const AttentionArgs& args) { return has_few_work_tiles<kNumbers...>(args); }
};
template <class Config>
struct ManyTiles {
  static bool holds(const AttentionArgs& args) { return has_many_work_tiles<Config>(args); }
};

template <class Work>
int64_t attention_workspace(const AttentionArgs& args) {
  if constexpr (!kUsesWgmma<Work>) {
    return flash_decode_workspace<Work>(args);
  } else if constexpr (kHasLatents<Work>) {
    return latent_workspace<Work>(args);
  } else {
    return wgmma_workspace<Work>(args);
  }
}

// The config of flash decode for plain calls.
template <class Config>
struct PlainConfig : Config {
  static constexpr int kPlain = 1;
};
template <class Config>
using Plain = std::conditional_t<kUsesWgmma<Config>, Config, PlainConfig<Config>>;

// Launches a config's kernel, or that of Plain<Config>; After as in AfterCombine of emitted
// kernels.
template <class Work, class After>
cudaError_t launch_attention(AttentionKernelFn general, AttentionKernelFn plain,
                             const AttentionArgs& args, cudaStream_t stream) {
  if constexpr (!kUsesWgmma<Work>) {
    return launch_flash_decode<Work>(general, plain, args, stream);
  } else if constexpr (kHasLatents<Work>) {
    return launch_latents<Work, After>(general, args, stream);
  } else {
    return launch_wgmma<Work>(general, args, stream);
  }
}

}  // namespace mirage::tile
