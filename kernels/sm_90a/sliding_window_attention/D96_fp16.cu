// mirage-kernels generate sliding_window_attention --arch sm_90a --dtype fp16 --shape D=96
// Shape   Phi-3-mini (window is 2047)
// Proved  72 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/sliding_window_attention/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __half;
  static constexpr int D = 96;
};
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<3>, Blocks<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>>;
using AnyRows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<4>, Stages<2>, Blocks<2>>;

template <class Call>
auto with_config(const AttentionArgs& args, Call call) {
  const int64_t rows = static_cast<int64_t>(args.q_len) * args.G;
  if (rows <= 8 && tile::has_few_work_tiles<8, 96>(args)) return call(UpTo8RowsFewTiles{});
  if (rows <= 8) return call(UpTo8Rows{});
  return call(AnyRows{});
}

}  // namespace

cudaError_t sliding_window_attention_D96_fp16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t sliding_window_attention_D96_fp16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
