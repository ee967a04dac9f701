// Attention as emitted kernels ask for it: what a block does, and the host side of a launch.
//
// Few query rows are flash decode: keys take the M side of mma, so that few rows waste nothing, and
// the warps of a block take different keys. Many rows take the M side of wgmma themselves.
#pragma once

#include "tile/attention/flash_decode/launch.cuh"
#include "tile/attention/wgmma/launch.cuh"
#include "variants.h"

MIRAGE_SCHEDULE(FlashAttention)
MIRAGE_KNOB(Keys)
MIRAGE_KNOB(KeySums)
MIRAGE_KNOB(Dynamic)
MIRAGE_KNOB(Producers)

namespace mirage::tile {

// Which of them a block runs follows from the rows of its tile.
template <class Config>
constexpr bool kUsesWgmma = Config::kRows >= kGroupRows;

// Of latent attention, keys have kMore elements beside those that are values, too.
template <class T, int kDepth, class Config, int kMore = 0>
using AttentionWork = std::conditional_t<kUsesWgmma<Config>, WgmmaAttention<T, kDepth, Config>,
                                         FlashDecode<T, kDepth, Config, kMore>>;

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
  if constexpr (kUsesWgmma<Work>) {
    return wgmma_workspace<Work>(args);
  } else {
    return flash_decode_workspace<Work>(args);
  }
}

template <class Work>
cudaError_t launch_attention(void (*kernel)(AttentionArgs), const AttentionArgs& args,
                             cudaStream_t stream) {
  if constexpr (kUsesWgmma<Work>) {
    return launch_wgmma<Work>(kernel, args, stream);
  } else {
    return launch_flash_decode<Work>(kernel, args, stream);
  }
}

}  // namespace mirage::tile
