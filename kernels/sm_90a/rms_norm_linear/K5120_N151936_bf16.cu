// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype bf16 --shape K=5120,N=151936
// Shape   Qwen3-32B lm_head, TP 1
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear/register_operand.cuh"
#include "../../forms/rms_norm_linear/sliced_k_bf16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 5120, N = 151936)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<144>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<128>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<240>, Stages<2>, Groups<1>, Blocks<1>>;
using AnyM = RegisterOperand<Shape, Tokens<64>, Rows<240>, Stages<2>, Groups<1>, Blocks<1>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_K5120_N151936_bf16, {2, Shape::K})

}  // namespace mirage::generated
