// mirage-kernels generate mla_decode --arch sm_90a --dtype fp16 --shape C=512,P=64
// Shape   DeepSeek-V3 and R1, DeepSeek-V2-Lite, Kimi-K2
// Proved  44 random draws over finite fields; a wrong muGraph passes with probability <= 2^-40.4.
#include "../../forms/mla_decode/flash_attention.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, C = 512, P = 64)
using AnyRows = FlashAttention<Shape, Rows<64>, Keys<64>, Warps<12>, Stages<2>, Blocks<1>,
                               Producers<4>, Parts<2>>;
using Variants = AttentionKernels<Any<AnyRows>>;

}  // namespace

MIRAGE_ATTENTION(mla_decode_C512_P64_fp16)

}  // namespace mirage::generated
