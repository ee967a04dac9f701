// mirage-kernels generate rms_norm --arch sm_90a --dtype fp16 --shape K=2048
// Shape   Llama-3.2-1B (weight_offset is 0)
// Proved  4 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.3.
#include "../../forms/rms_norm/row_wise.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 2048)
using AnyM = RowWise<Shape, Warps<2>>;
using Variants = Kernels<Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_K2048_fp16)

}  // namespace mirage::generated
