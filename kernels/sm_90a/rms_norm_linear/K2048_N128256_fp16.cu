// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype fp16 --shape K=2048,N=128256
// Shape   Llama-3.2-1B lm_head, TP 1
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/rms_norm_linear/cluster_split_k_fp16.cuh"
#include "../../forms/rms_norm_linear/sliced_k_fp16.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 2048, N = 128256)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<80>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<128>, Warps<4>, Chunks<2>, Stages<2>>;
using UpTo32M = SlicedK<Shape, Tokens<32>, Rows<96>, Warps<4>, Chunks<2>, Stages<3>>;
using AnyM = ClusterSplitK<Shape, Tokens<64>, Rows<256>, Stages<3>, Groups<2>, Turns<1>,
                           TmaTiles<1>, Sets<1>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(rms_norm_linear_K2048_N128256_fp16, {2, Shape::K})

}  // namespace mirage::generated
