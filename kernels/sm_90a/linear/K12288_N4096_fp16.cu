// mirage-kernels generate linear --arch sm_90a --dtype fp16 --shape K=12288,N=4096
// Shape   Qwen3-8B down_proj, TP 1
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-59.9.
#include "../../forms/linear/cluster_split_k.cuh"
#include "../../forms/linear/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 12288, N = 4096)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<32>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<32>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo32M = ClusterSplitK<Shape, Tokens<32>, Rows<64>, Stages<4>, Groups<2>, Turns<2>,
                              TmaTiles<2>, Sets<1>>;
using AnyM = ClusterSplitK<Shape, Tokens<64>, Rows<64>, Stages<4>, Groups<2>, Turns<2>, TmaTiles<2>,
                           Sets<1>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(linear_K12288_N4096_fp16, {1, Shape::K})

}  // namespace mirage::generated
