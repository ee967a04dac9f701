// mirage-kernels generate gqa --arch sm_90a --dtype bf16 --shape D=128
// Shape   Llama-3-8B and Qwen3-8B; Llama-3-70B and Qwen3-32B; Llama-2-7B and Chameleon-7B
//         (multi-head)
// Proved  86 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/gqa/flash_attention.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, D = 128)
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<3>, Blocks<1>>;
using UpTo8RowsManyTiles =
    FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>, Dynamic<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<2>>;
using UpTo16Rows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<8>, Stages<2>, Blocks<1>>;
using UpTo32Rows =
    FlashAttention<Shape, Rows<128>, Keys<64>, Warps<12>, Stages<3>, Blocks<1>, Producers<4>>;
using Variants =
    AttentionKernels<UpTo<8, UpTo8RowsFewTiles, tile::FewTiles<8, 128>>,
                     UpTo<8, UpTo8RowsManyTiles, tile::ManyTiles<UpTo8RowsManyTiles>>,
                     UpTo<8, UpTo8Rows>, UpTo<16, UpTo8RowsFewTiles, tile::FewTiles<8, 128>>,
                     UpTo<16, UpTo16Rows>, UpTo<32, UpTo8RowsFewTiles, tile::FewTiles<8, 128>>,
                     Any<UpTo32Rows>>;

}  // namespace

MIRAGE_ATTENTION(gqa_D128_bf16)

}  // namespace mirage::generated
