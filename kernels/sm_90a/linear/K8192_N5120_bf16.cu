// mirage-kernels generate linear --arch sm_90a --dtype bf16 --shape K=8192,N=5120
// Shape   Qwen3-32B o_proj, TP 1
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-59.9.
#include "../../forms/linear/register_operand.cuh"
#include "../../forms/linear/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 8192, N = 5120)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<40>, Warps<8>, Chunks<2>, Stages<3>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<40>, Warps<8>, Chunks<2>, Stages<3>>;
using UpTo32M =
    RegisterOperand<Shape, Tokens<32>, Rows<80>, Stages<3>, Groups<1>, Blocks<2>, Barriers<2>>;
using AnyM = RegisterOperand<Shape, Tokens<64>, Rows<80>, Stages<3>, Groups<1>, Blocks<2>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(linear_K8192_N5120_bf16, {1, Shape::K})

}  // namespace mirage::generated
