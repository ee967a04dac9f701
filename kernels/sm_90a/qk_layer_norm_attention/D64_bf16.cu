// mirage-kernels generate qk_layer_norm_attention --arch sm_90a --dtype bf16 --shape D=64
// Shape   Persimmon-8B (multi-head, one weight and bias for all heads)
// Proved  72 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/qk_layer_norm_attention/flash_attention.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, D = 64, kKeyWork = 2)
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<5>, Blocks<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<5>, Blocks<2>>;
using AnyRows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<4>, Stages<5>, Blocks<2>>;
using Variants = AttentionKernels<UpTo<8, UpTo8RowsFewTiles, tile::FewTiles<8, 64, 2>>,
                                  UpTo<8, UpTo8Rows>, Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(qk_layer_norm_attention_D64_bf16)

}  // namespace mirage::generated
