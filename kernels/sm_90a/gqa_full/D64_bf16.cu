// mirage-kernels generate gqa_full --arch sm_90a --dtype bf16 --shape D=64
// Shape   given on the command line
// Proved  86 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/gqa_full/flash_attention.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, D = 64)
using UpTo8RowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<5>, Blocks<1>>;
using UpTo8Rows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<5>, Blocks<2>>;
using UpTo16Rows = FlashAttention<Shape, Rows<16>, Keys<16>, Warps<4>, Stages<5>, Blocks<2>>;
using AnyRows =
    FlashAttention<Shape, Rows<64>, Keys<128>, Warps<12>, Stages<5>, Blocks<1>, Producers<4>>;
using Variants =
    AttentionKernels<UpTo<8, UpTo8RowsFewTiles, tile::FewTiles<8, 64>>, UpTo<8, UpTo8Rows>,
                     UpTo<16, UpTo8RowsFewTiles, tile::FewTiles<8, 64>>, UpTo<16, UpTo16Rows>,
                     Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(gqa_full_D64_bf16)

}  // namespace mirage::generated
