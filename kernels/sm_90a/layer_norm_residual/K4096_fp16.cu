// mirage-kernels generate layer_norm_residual --arch sm_90a --dtype fp16 --shape K=4096
// Shape   OPT-6.7B
// Proved  4 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.3.
#include "../../forms/layer_norm_residual/row_wise.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 4096)
using AnyM = RowWise<Shape, Warps<4>>;
using Variants = Kernels<Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(layer_norm_residual_K4096_fp16)

}  // namespace mirage::generated
