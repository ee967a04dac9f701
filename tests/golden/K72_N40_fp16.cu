// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype fp16 --shape K=72,N=40
// Shape   a test
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 72, N = 40)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<8>, Warps<8>, Chunks<2>, Stages<2>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<8>, Warps<8>, Chunks<2>, Stages<2>>;
using UpTo32M = SlicedK<Shape, Tokens<32>, Rows<8>, Warps<8>, Chunks<2>, Stages<2>>;
using AnyM = SlicedK<Shape, Tokens<64>, Rows<8>, Warps<8>, Chunks<2>, Stages<2>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_K72_N40_fp16, {2, Shape::K})

}  // namespace mirage::generated
