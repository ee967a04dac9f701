// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype fp16 --shape K=4096,N=1536
// Shape   Llama-3.1-8B qkv_proj, TP 4
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear/cluster_split_k_fp16.cuh"
#include "../../forms/rms_norm_linear/sliced_k_fp16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 4096, N = 1536)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<16>, Warps<8>, Chunks<2>, Stages<7>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<16>, Warps<8>, Chunks<2>, Stages<4>>;
using UpTo32M = ClusterSplitK<Shape, Tokens<32>, Rows<32>, Stages<10>, Groups<2>, Turns<2>,
                              TmaTiles<2>, Sets<1>>;
using AnyM = ClusterSplitK<Shape, Tokens<64>, Rows<32>, Stages<8>, Groups<2>, Turns<2>, TmaTiles<2>,
                           Sets<1>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_K4096_N1536_fp16, {2, Shape::K})

}  // namespace mirage::generated
