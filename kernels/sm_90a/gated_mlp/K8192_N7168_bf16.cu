// mirage-kernels generate gated_mlp --arch sm_90a --dtype bf16 --shape K=8192,N=7168
// Shape   Llama-3-70B, TP 4
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.3.
#include "../../forms/gated_mlp/register_operand.cuh"
#include "../../forms/gated_mlp/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 8192, N = 7168)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<56>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<56>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<64>, Stages<2>, Groups<2>, Blocks<1>>;
using AnyM =
    RegisterOperand<Shape, Tokens<64>, Rows<64>, Stages<2>, Groups<2>, Blocks<1>, Barriers<2>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(gated_mlp_K8192_N7168_bf16, {1, Shape::K}, {2, Shape::K})

}  // namespace mirage::generated
