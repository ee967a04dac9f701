// mirage-kernels generate rms_norm_linear_residual --arch sm_90a --dtype fp16 --shape K=3584,N=4608
// Shape   Qwen2-7B qkv_proj, TP 1 (weight_offset is 0)
// Proved  8 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear_residual/sliced_k_fp16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 3584, N = 4608)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<40>, Warps<8>, Chunks<2>, Stages<3>>;
using AnyM = SlicedK<Shape, Tokens<16>, Rows<40>, Warps<8>, Chunks<2>, Stages<2>>;
using Variants = Kernels<UpTo<8, UpTo8M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_residual_K3584_N4608_fp16, {2, Shape::K})

}  // namespace mirage::generated
