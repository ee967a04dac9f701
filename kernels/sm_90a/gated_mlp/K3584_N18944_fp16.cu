// mirage-kernels generate gated_mlp --arch sm_90a --dtype fp16 --shape K=3584,N=18944
// Shape   Qwen2.5-7B, TP 1
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.3.
#include "../../forms/gated_mlp/register_operand.cuh"
#include "../../forms/gated_mlp/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 3584, N = 18944)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<72>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<72>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo32M =
    RegisterOperand<Shape, Tokens<32>, Rows<144>, Stages<2>, Groups<1>, Blocks<1>, Barriers<2>>;
using AnyM =
    RegisterOperand<Shape, Tokens<64>, Rows<144>, Stages<2>, Groups<1>, Blocks<1>, Barriers<2>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(gated_mlp_K3584_N18944_fp16, {1, Shape::K}, {2, Shape::K})

}  // namespace mirage::generated
