// mirage-kernels generate gated_mlp --arch sm_90a --dtype bf16 --shape K=4096,N=4096
// Shape   the Mirage paper's gated MLP
// Proved  20 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.3.
#include "../../forms/gated_mlp/register_operand.cuh"
#include "../../forms/gated_mlp/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 4096, N = 4096)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<32>, Warps<4>, Chunks<2>, Stages<6>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<32>, Warps<4>, Chunks<2>, Stages<5>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<32>, Stages<6>, Groups<2>, Blocks<1>>;
using UpTo64M =
    RegisterOperand<Shape, Tokens<64>, Rows<32>, Stages<4>, Groups<2>, Blocks<1>, Barriers<2>>;
using AnyM =
    RegisterOperand<Shape, Tokens<128>, Rows<64>, Stages<3>, Groups<2>, Blocks<2>, Barriers<2>>;
using Variants =
    Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, UpTo<64, UpTo64M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(gated_mlp_K4096_N4096_bf16, {1, Shape::K}, {2, Shape::K})

}  // namespace mirage::generated
