// mirage-kernels generate rms_norm_gated_mlp --arch sm_90a --dtype fp16 --shape K=4096,N=12288
// Shape   Qwen3-8B, TP 1
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-55.
#include "../../forms/rms_norm_gated_mlp/cluster_split_k.cuh"
#include "../../forms/rms_norm_gated_mlp/sliced_k_fp16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 4096, N = 12288)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<24>, Warps<4>, Chunks<2>, Stages<3>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<48>, Warps<4>, Chunks<2>, Stages<3>>;
using UpTo32M = SlicedK<Shape, Tokens<32>, Rows<48>, Warps<4>, Chunks<2>, Stages<3>>;
using AnyM = ClusterSplitK<Shape, Tokens<64>, Rows<96>, Stages<3>, Groups<2>, Turns<1>, TmaTiles<1>,
                           Sets<1>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_gated_mlp_K4096_N12288_fp16, {2, Shape::K}, {3, Shape::K})

}  // namespace mirage::generated
