// mirage-kernels generate silu_and_mul --arch sm_90a --dtype bf16 --shape N=1792
// Shape   Llama-3.1-8B, TP 8
// Proved  4 random draws over finite fields; a wrong muGraph passes with probability <= 2^-58.8.
#include "../../forms/silu_and_mul/elementwise.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, N = 1792)
using AnyM = Elementwise<Shape, Warps<4>, Line<896>>;
using Variants = Kernels<Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(silu_and_mul_N1792_bf16)

}  // namespace mirage::generated
