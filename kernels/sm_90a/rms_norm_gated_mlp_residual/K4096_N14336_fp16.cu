// mirage-kernels generate rms_norm_gated_mlp_residual --arch sm_90a --dtype fp16 --shape K=4096,N=14336
// Shape   Llama-3-8B, TP 1
// Proved  8 random draws over finite fields; a wrong muGraph passes with probability <= 2^-55.
#include "../../forms/rms_norm_gated_mlp_residual/sliced_k_fp16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 4096, N = 14336)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<56>, Warps<4>, Chunks<2>, Stages<2>>;
using AnyM = SlicedK<Shape, Tokens<16>, Rows<56>, Warps<4>, Chunks<2>, Stages<2>>;
using Variants = Kernels<UpTo<8, UpTo8M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_gated_mlp_residual_K4096_N14336_fp16, {2, Shape::K}, {3, Shape::K})

}  // namespace mirage::generated
