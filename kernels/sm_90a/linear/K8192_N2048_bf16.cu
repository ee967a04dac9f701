// mirage-kernels generate linear --arch sm_90a --dtype bf16 --shape K=8192,N=2048
// Shape   Llama-3.2-1B down_proj, TP 1
// Proved  20 random draws over finite fields; a wrong muGraph passes with probability <= 2^-59.9.
#include "../../forms/linear/cluster_split_k.cuh"
#include "../../forms/linear/register_operand.cuh"
#include "../../forms/linear/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 8192, N = 2048)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<8>, Warps<8>, Chunks<2>, Stages<6>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<16>, Warps<8>, Chunks<2>, Stages<5>>;
using UpTo32M = ClusterSplitK<Shape, Tokens<32>, Rows<32>, Stages<8>, Groups<2>, Turns<2>,
                              TmaTiles<2>, Sets<1>>;
using UpTo64M =
    RegisterOperand<Shape, Tokens<64>, Rows<80>, Stages<8>, Groups<2>, Blocks<4>, TmaTiles<1>>;
using AnyM =
    RegisterOperand<Shape, Tokens<128>, Rows<80>, Stages<6>, Groups<2>, Blocks<4>, TmaTiles<1>>;
using Variants =
    Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, UpTo<64, UpTo64M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(linear_K8192_N2048_bf16, {1, Shape::K})

}  // namespace mirage::generated
