// mirage-kernels generate rms_norm_linear_full --arch sm_90a --dtype fp16 --shape K=3584,N=8192
// Shape   Gemma-2-9B qkv_proj, TP 1 (no bias, weight_offset is 1)
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear_full/cluster_split_k_fp16.cuh"
#include "../../forms/rms_norm_linear_full/sliced_k_fp16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 3584, N = 8192)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<64>, Warps<8>, Chunks<2>, Stages<2>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<64>, Warps<8>, Chunks<2>, Stages<2>>;
using UpTo32M = SlicedK<Shape, Tokens<32>, Rows<64>, Warps<8>, Chunks<2>, Stages<2>>;
using AnyM = ClusterSplitK<Shape, Tokens<64>, Rows<128>, Stages<5>, Groups<2>, Turns<1>,
                           TmaTiles<1>, Sets<1>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_full_K3584_N8192_fp16, {2, Shape::K})

}  // namespace mirage::generated
