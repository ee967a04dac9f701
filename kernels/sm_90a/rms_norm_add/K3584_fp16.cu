// mirage-kernels generate rms_norm_add --arch sm_90a --dtype fp16 --shape K=3584
// Shape   Gemma-2-9B behind attention and MLP (weight_offset is 1)
// Proved  4 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.3.
#include "../../forms/rms_norm_add/row_wise.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 3584)
using AnyM = RowWise<Shape, Warps<4>>;
using Variants = Kernels<Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_add_K3584_fp16)

}  // namespace mirage::generated
