// mirage-kernels generate gqa_full --arch sm_90a --dtype fp16 --shape D=192
// Shape   given on the command line
// Proved  58 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/gqa_full/flash_attention.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, D = 192)
using AnyRowsFewTiles = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<8>, Stages<2>, Blocks<1>>;
using AnyRows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<2>, Blocks<2>>;
using Variants = AttentionKernels<Any<AnyRowsFewTiles, tile::FewTiles<8, 192>>, Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(gqa_full_D192_fp16)

}  // namespace mirage::generated
