// mirage-kernels generate ntrans --arch sm_90a --dtype fp16 --shape K=4096
// Shape   the Mirage paper's nTrans (its alpha is per token too)
// Proved  4 random draws over finite fields; a wrong muGraph passes with probability <= 2^-51.4.
#include "../../forms/ntrans/row_wise.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 4096)
using AnyM = RowWise<Shape, Warps<8>>;
using Variants = Kernels<Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(ntrans_K4096_fp16)

}  // namespace mirage::generated
