// mirage-kernels generate rms_norm_gated_mlp --arch sm_90a --dtype bf16 --shape K=3072,N=8192
// Shape   Llama-3.2-3B, TP 1
// Proved  20 random draws over finite fields; a wrong muGraph passes with probability <= 2^-55.
#include "../../forms/rms_norm_gated_mlp/register_operand.cuh"
#include "../../forms/rms_norm_gated_mlp/sliced_k_bf16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 3072, N = 8192)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<64>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<64>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<64>, Stages<2>, Groups<2>, Blocks<1>>;
using UpTo64M = RegisterOperand<Shape, Tokens<64>, Rows<64>, Stages<2>, Groups<2>, Blocks<1>>;
using AnyM =
    RegisterOperand<Shape, Tokens<128>, Rows<128>, Stages<3>, Groups<2>, Blocks<2>, TmaTiles<1>>;
using Variants =
    Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, UpTo<64, UpTo64M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_gated_mlp_K3072_N8192_bf16, {2, Shape::K}, {3, Shape::K})

}  // namespace mirage::generated
