// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype bf16 --shape K=8192,N=2560
// Shape   Llama-3.1-70B qkv_proj, TP 4
// Proved  20 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear/register_operand.cuh"
#include "../../forms/rms_norm_linear/sliced_k_bf16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 8192, N = 2560)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<24>, Warps<8>, Chunks<2>, Stages<5>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<24>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<96>, Stages<4>, Groups<2>, Blocks<4>>;
using UpTo64M =
    RegisterOperand<Shape, Tokens<64>, Rows<96>, Stages<6>, Groups<2>, Blocks<4>, TmaTiles<1>>;
using AnyM = RegisterOperand<Shape, Tokens<128>, Rows<96>, Stages<3>, Groups<2>, Blocks<4>>;
using Variants =
    Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, UpTo<64, UpTo64M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_K8192_N2560_bf16, {2, Shape::K})

}  // namespace mirage::generated
