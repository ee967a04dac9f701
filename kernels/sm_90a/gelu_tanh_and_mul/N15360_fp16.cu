// mirage-kernels generate gelu_tanh_and_mul --arch sm_90a --dtype fp16 --shape N=15360
// Shape   Gemma-3-12B, TP 1
// Proved  4 random draws over finite fields; a wrong muGraph passes with probability <= 2^-58.8.
#include "../../forms/gelu_tanh_and_mul/elementwise.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, N = 15360)
using AnyM = Elementwise<Shape, Warps<4>, Line<1024>>;
using Variants = Kernels<Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(gelu_tanh_and_mul_N15360_fp16)

}  // namespace mirage::generated
