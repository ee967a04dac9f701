// mirage-kernels generate qk_norm_attention --arch sm_90a --dtype bf16 --shape D=128
// Shape   Qwen3-8B and Qwen3-32B; Gemma-3-27B (weight_offset is 1)
// Proved  86 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/qk_norm_attention/flash_attention.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, D = 128, kKeyWork = 1)
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<3>, Blocks<1>>;
using UpTo8RowsManyTiles =
    FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>, Dynamic<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>>;
using UpTo16Rows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<8>, Stages<2>, Blocks<1>>;
using AnyRows = FlashAttention<Shape, Rows<128>, Keys<64>, Warps<12>, Stages<3>, Blocks<1>,
                               Producers<4>, KeySums<1>>;
using Variants = AttentionKernels<UpTo<8, UpTo8RowsFewTiles, tile::FewTiles<8, 128, 1>>,
                                  UpTo<8, UpTo8RowsManyTiles, tile::ManyTiles<UpTo8RowsManyTiles>>,
                                  UpTo<8, UpTo8Rows>, UpTo<16, UpTo16Rows>,
                                  UpTo<32, UpTo8RowsFewTiles, tile::FewTiles<8, 128, 1>>,
                                  UpTo<32, UpTo8RowsManyTiles, tile::ManyTiles<UpTo8RowsManyTiles>>,
                                  UpTo<32, UpTo8Rows>, Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(qk_norm_attention_D128_bf16)

}  // namespace mirage::generated
