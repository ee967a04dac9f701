// mirage-kernels generate qk_layer_norm_attention --arch sm_90a --dtype bf16 --shape D=128
// Shape   Chameleon-7B (multi-head) and Chameleon-34B; Command-R+ (no biases)
// Proved  72 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/qk_layer_norm_attention/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int D = 128, kKeyWork = 2;
};
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<2>, Blocks<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>>;
using AnyRows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<8>, Stages<2>, Blocks<1>>;

template <class Call>
auto with_config(const AttentionArgs& args, Call call) {
  const int64_t rows = static_cast<int64_t>(args.q_len) * args.G;
  if (rows <= 8 && tile::has_few_work_tiles<8, 128, 2>(args)) return call(UpTo8RowsFewTiles{});
  if (rows <= 8) return call(UpTo8Rows{});
  return call(AnyRows{});
}

}  // namespace

cudaError_t qk_layer_norm_attention_D128_bf16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t qk_layer_norm_attention_D128_bf16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
