// mirage-kernels generate sliding_window_attention --arch sm_90a --dtype bf16 --shape D=256
// Shape   Gemma-3-12B (window is 1024)
// Proved  44 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/sliding_window_attention/flash_attention.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, D = 256)
using AnyRows = FlashAttention<Shape, Rows<8>, Keys<16>, Warps<4>, Stages<3>, Blocks<1>>;
using Variants = AttentionKernels<Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(sliding_window_attention_D256_bf16)

}  // namespace mirage::generated
