// mirage-kernels generate linear --arch sm_90a --dtype bf16 --shape K=4096,N=4096
// Shape   Llama-3.1-8B, Mistral-7B and Qwen3-8B o_proj, TP 1
// Proved  20 random draws over finite fields; a wrong muGraph passes with probability <= 2^-59.9.
#include "../../forms/linear/cluster_split_k.cuh"
#include "../../forms/linear/register_operand.cuh"
#include "../../forms/linear/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 4096, N = 4096)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<16>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<16>, Warps<8>, Chunks<2>, Stages<3>>;
using UpTo32M = ClusterSplitK<Shape, Tokens<32>, Rows<64>, Stages<4>, Groups<2>, Turns<2>,
                              TmaTiles<2>, Sets<1>>;
using UpTo64M = ClusterSplitK<Shape, Tokens<64>, Rows<64>, Stages<4>, Groups<2>, Turns<2>,
                              TmaTiles<2>, Sets<1>>;
using AnyM =
    RegisterOperand<Shape, Tokens<128>, Rows<64>, Stages<4>, Groups<2>, Blocks<2>, Barriers<2>>;
using Variants =
    Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, UpTo<64, UpTo64M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(linear_K4096_N4096_bf16, {1, Shape::K})

}  // namespace mirage::generated
