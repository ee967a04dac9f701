// mirage-kernels generate gated_mlp --arch sm_90a --dtype bf16 --shape K=4096,N=1792
// Shape   Llama-3-8B, TP 8
// Proved  20 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.3.
#include "../../forms/gated_mlp/register_operand.cuh"
#include "../../forms/gated_mlp/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 4096, N = 1792)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<16>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<16>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<16>, Stages<8>, Groups<2>, Blocks<1>>;
using UpTo64M = RegisterOperand<Shape, Tokens<64>, Rows<32>, Stages<4>, Groups<2>, Blocks<2>>;
using AnyM =
    RegisterOperand<Shape, Tokens<128>, Rows<64>, Stages<4>, Groups<2>, Blocks<4>, TmaTiles<1>>;
using Variants =
    Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, UpTo<64, UpTo64M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(gated_mlp_K4096_N1792_bf16, {1, Shape::K}, {2, Shape::K})

}  // namespace mirage::generated
