// mirage-kernels generate rms_norm_linear_full --arch sm_90a --dtype bf16 --shape K=4096,N=6144
// Shape   Llama-3-8B qkv_proj, TP 1 (no bias, weight_offset is 0)
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear_full/cluster_split_k_bf16.cuh"
#include "../../forms/rms_norm_linear_full/register_operand.cuh"
#include "../../forms/rms_norm_linear_full/sliced_k_bf16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 4096, N = 6144)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<48>, Warps<8>, Chunks<2>, Stages<3>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<48>, Warps<8>, Chunks<2>, Stages<3>>;
using UpTo32M = ClusterSplitK<Shape, Tokens<32>, Rows<96>, Stages<6>, Groups<2>, Turns<1>,
                              TmaTiles<1>, Sets<2>>;
using AnyM = RegisterOperand<Shape, Tokens<64>, Rows<96>, Stages<4>, Groups<2>, Blocks<2>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_full_K4096_N6144_bf16, {2, Shape::K})

}  // namespace mirage::generated
