// mirage-kernels generate linear --arch sm_90a --dtype fp16 --shape K=4096,N=3840
// Shape   Gemma-3-12B o_proj, TP 1
// Proved  20 random draws over finite fields; a wrong muGraph passes with probability <= 2^-59.9.
#include "../../forms/linear/cluster_split_k.cuh"
#include "../../forms/linear/register_operand.cuh"
#include "../../forms/linear/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 4096, N = 3840)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<32>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<32>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo32M = RegisterOperand<Shape, Tokens<32>, Rows<64>, Stages<4>, Groups<2>, Blocks<2>>;
using UpTo64M = ClusterSplitK<Shape, Tokens<64>, Rows<64>, Stages<4>, Groups<2>, Turns<2>,
                              TmaTiles<2>, Sets<1>>;
using AnyM =
    RegisterOperand<Shape, Tokens<128>, Rows<128>, Stages<4>, Groups<2>, Blocks<4>, TmaTiles<1>>;
using Variants =
    Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, UpTo<64, UpTo64M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(linear_K4096_N3840_fp16, {1, Shape::K})

}  // namespace mirage::generated
