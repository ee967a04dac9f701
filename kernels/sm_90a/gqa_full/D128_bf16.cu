// mirage-kernels generate gqa_full --arch sm_90a --dtype bf16 --shape D=128
// Shape   Gemma-2-27B (scale is 144^-0.5)
// Proved  128 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/gqa_full/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int D = 128;
};
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<3>, Blocks<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>>;
using UpTo16Rows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<4>, Stages<2>, Blocks<2>>;
using UpTo32Rows =
    FlashAttention<Shape, Rows<128>, Keys<64>, Warps<12>, Stages<3>, Blocks<1>, Producers<4>>;

template <class Call>
auto with_config(const AttentionArgs& args, Call call) {
  const int64_t rows = static_cast<int64_t>(args.q_len) * args.G;
  if (rows <= 8 && tile::has_few_work_tiles<8, 128>(args)) return call(UpTo8RowsFewTiles{});
  if (rows <= 8) return call(UpTo8Rows{});
  if (rows <= 16 && tile::has_few_work_tiles<8, 128>(args)) return call(UpTo8RowsFewTiles{});
  if (rows <= 16) return call(UpTo16Rows{});
  if (rows <= 32 && tile::has_few_work_tiles<8, 128>(args)) return call(UpTo8RowsFewTiles{});
  return call(UpTo32Rows{});
}

}  // namespace

cudaError_t gqa_full_D128_bf16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t gqa_full_D128_bf16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
