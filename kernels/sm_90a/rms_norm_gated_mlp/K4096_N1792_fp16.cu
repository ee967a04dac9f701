// mirage-kernels generate rms_norm_gated_mlp --arch sm_90a --dtype fp16 --shape K=4096,N=1792
// Shape   Llama-3.1-8B, TP 8
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-55.
#include "../../forms/rms_norm_gated_mlp/cluster_split_k.cuh"
#include "../../forms/rms_norm_gated_mlp/sliced_k_fp16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 4096, N = 1792)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<16>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<16>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo32M = SlicedK<Shape, Tokens<32>, Rows<16>, Warps<8>, Chunks<2>, Stages<3>>;
using AnyM = ClusterSplitK<Shape, Tokens<64>, Rows<32>, Stages<4>, Groups<2>, Turns<2>, TmaTiles<2>,
                           Sets<1>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_gated_mlp_K4096_N1792_fp16, {2, Shape::K}, {3, Shape::K})

}  // namespace mirage::generated
