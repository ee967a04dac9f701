// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype bf16 --shape K=4096,N=4096
// Shape   Llama-3-8B q_proj, TP 1; Chameleon-7B q_proj
// Proved  20 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear/cluster_split_k_bf16.cuh"
#include "../../forms/rms_norm_linear/register_operand.cuh"
#include "../../forms/rms_norm_linear/sliced_k_bf16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 4096, N = 4096)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<32>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<32>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo32M = ClusterSplitK<Shape, Tokens<32>, Rows<64>, Stages<4>, Groups<2>, Turns<2>,
                              TmaTiles<2>, Sets<1>>;
using UpTo64M = RegisterOperand<Shape, Tokens<64>, Rows<64>, Stages<4>, Groups<2>, Blocks<2>>;
using AnyM =
    RegisterOperand<Shape, Tokens<128>, Rows<144>, Stages<4>, Groups<2>, Blocks<4>, TmaTiles<1>>;
using Variants =
    Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, UpTo<64, UpTo64M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_K4096_N4096_bf16, {2, Shape::K})

}  // namespace mirage::generated
