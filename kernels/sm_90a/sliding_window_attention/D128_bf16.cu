// mirage-kernels generate sliding_window_attention --arch sm_90a --dtype bf16 --shape D=128
// Shape   Mistral-7B-v0.1; Gemma-3-27B (window is 1024)
// Proved  86 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/sliding_window_attention/flash_attention.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, D = 128)
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<3>, Blocks<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>>;
using UpTo16Rows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<4>, Stages<2>, Blocks<2>>;
using UpTo32Rows =
    FlashAttention<Shape, Rows<128>, Keys<64>, Warps<12>, Stages<3>, Blocks<1>, Producers<4>>;
using Variants =
    AttentionKernels<UpTo<8, UpTo8RowsFewTiles, tile::FewTiles<8, 128>>, UpTo<8, UpTo8Rows>,
                     UpTo<16, UpTo8RowsFewTiles, tile::FewTiles<8, 128>>, UpTo<16, UpTo16Rows>,
                     UpTo<32, UpTo8RowsFewTiles, tile::FewTiles<8, 128>>, Any<UpTo32Rows>>;

}  // namespace

MIRAGE_ATTENTION(sliding_window_attention_D128_bf16)

}  // namespace mirage::generated
