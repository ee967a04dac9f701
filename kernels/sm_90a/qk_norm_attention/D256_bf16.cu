// mirage-kernels generate qk_norm_attention --arch sm_90a --dtype bf16 --shape D=256
//
// Formula   [B, Hkv, G, D] = gqa of q and k after rms_norm over D, by their weights plus
//           weight_offset
// Shape     Gemma-3-4B and Gemma-3-12B (weight_offset is 1)
// Proved    equal to the recipe on 44 random draws over finite fields, for the tiles of its one
//           variant, at full D and uneven edges; a wrong muGraph passes with probability at most
//           2^-40.4.
// Accuracy  emulated error against float64 (unfused program's): unit 6.0e-03 (1.7e-02), tiny
//           4.5e-03 (1.2e-02), outliers 1.0e-02 (1.9e-02), wide 6.8e-03 (1.6e-02), stale 4.8e-03
//           (1.2e-02).
// Launch    as many blocks as run at once, by query rows (G) as below; shared memory of their
//           blocks: 197 KiB.

#include "launch.h"

#include "../../forms/qk_norm_attention/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int D = 256, kKeyWork = 1;
};
struct AnyRows : Shape {
  static constexpr int kRows = 8, kKeys = 16, kWarps = 4, kStages = 3, kBlocks = 1;
};

template <class Call>
auto with_config(const AttentionArgs& args, Call call) {
  return call(AnyRows{});
}

}  // namespace

cudaError_t qk_norm_attention_D256_bf16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t qk_norm_attention_D256_bf16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
