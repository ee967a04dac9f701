// mirage-kernels generate linear --arch sm_90a --dtype bf16 --shape K=15360,N=3840
// Shape   Gemma-3-12B down_proj, TP 1
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-59.9.
#include "../../forms/linear/register_operand.cuh"
#include "../../forms/linear/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 15360, N = 3840)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<32>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<32>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<64>, Stages<4>, Groups<2>, Blocks<2>>;
using AnyM =
    RegisterOperand<Shape, Tokens<64>, Rows<128>, Stages<6>, Groups<2>, Blocks<4>, TmaTiles<1>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(linear_K15360_N3840_bf16, {1, Shape::K})

}  // namespace mirage::generated
