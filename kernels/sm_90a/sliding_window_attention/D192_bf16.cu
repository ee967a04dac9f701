// mirage-kernels generate sliding_window_attention --arch sm_90a --dtype bf16 --shape D=192
// Shape   Nemotron-4-340B (window is all keys)
// Proved  58 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/sliding_window_attention/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int D = 192;
};
using AnyRowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<2>, Blocks<1>>;
using AnyRows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<2>, Blocks<2>>;

template <class Call>
auto with_config(const AttentionArgs& args, Call call) {
  if (tile::has_few_work_tiles<8, 192>(args)) return call(AnyRowsFewTiles{});
  return call(AnyRows{});
}

}  // namespace

cudaError_t sliding_window_attention_D192_bf16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t sliding_window_attention_D192_bf16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
