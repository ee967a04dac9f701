// mirage-kernels generate linear --arch sm_90a --dtype bf16 --shape K=3584,N=8192
// Shape   Llama-3-70B down_proj, TP 8
// Proved  20 random draws over finite fields; a wrong muGraph passes with probability <= 2^-59.9.
#include "../../forms/linear/register_operand.cuh"
#include "../../forms/linear/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 3584, N = 8192)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<64>, Warps<8>, Chunks<2>, Stages<2>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<64>, Warps<8>, Chunks<2>, Stages<2>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<128>, Stages<4>, Groups<2>, Blocks<2>>;
using UpTo64M =
    RegisterOperand<Shape, Tokens<64>, Rows<64>, Stages<4>, Groups<2>, Blocks<1>, Barriers<2>>;
using AnyM =
    RegisterOperand<Shape, Tokens<128>, Rows<128>, Stages<3>, Groups<2>, Blocks<2>, Barriers<2>>;
using Variants =
    Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, UpTo<64, UpTo64M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(linear_K3584_N8192_bf16, {1, Shape::K})

}  // namespace mirage::generated
