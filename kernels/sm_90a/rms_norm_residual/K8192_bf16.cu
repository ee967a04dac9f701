// mirage-kernels generate rms_norm_residual --arch sm_90a --dtype bf16 --shape K=8192
// Shape   Llama-3-70B (weight_offset is 0)
// Proved  4 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.3.
#include "../../forms/rms_norm_residual/cluster_rows.cuh"
#include "../../forms/rms_norm_residual/row_wise.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 8192)
using UpTo8M = ClusterRows<Shape, Warps<2>, Blocks<8>>;
using AnyM = RowWise<Shape, Warps<8>>;
using Variants = Kernels<UpTo<8, UpTo8M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_residual_K8192_bf16)

}  // namespace mirage::generated
