// mirage-kernels generate gqa_full --arch sm_90a --dtype fp16 --shape D=256
// Shape   Gemma-2-9B and Gemma-2-2B
// Proved  44 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/gqa_full/flash_attention.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, D = 256)
using AnyRows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<1>>;
using Variants = AttentionKernels<Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(gqa_full_D256_fp16)

}  // namespace mirage::generated
