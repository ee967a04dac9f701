// mirage-kernels generate silu_and_mul --arch sm_90a --dtype fp16 --shape N=28672
// Shape   Llama-3.1-70B, TP 1
// Proved  4 random draws over finite fields; a wrong muGraph passes with probability <= 2^-58.8.
#include "../../forms/silu_and_mul/elementwise.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, N = 28672)
using AnyM = Elementwise<Shape, Warps<4>, Line<1024>>;
using Variants = Kernels<Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(silu_and_mul_N28672_fp16)

}  // namespace mirage::generated
