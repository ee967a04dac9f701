// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype bf16 --shape K=8192,N=1280
// Shape   Llama-3.1-70B qkv_proj, TP 8
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear/register_operand.cuh"
#include "../../forms/rms_norm_linear/sliced_k_bf16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 8192, N = 1280)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<16>, Warps<8>, Chunks<2>, Stages<7>>;
using UpTo16M = RegisterOperand<Shape, Tokens<16>, Rows<48>, Stages<10>, Groups<2>, Blocks<4>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<48>, Stages<8>, Groups<2>, Blocks<4>>;
using AnyM = RegisterOperand<Shape, Tokens<64>, Rows<48>, Stages<6>, Groups<2>, Blocks<4>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_K8192_N1280_bf16, {2, Shape::K})

}  // namespace mirage::generated
