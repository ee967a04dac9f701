// mirage-kernels generate layer_norm_linear --arch sm_90a --dtype fp16 --shape K=4096,N=6144
// Shape   Command R7B qkv_proj, TP 1 (norm_bias is 0)
// Proved  17 random draws over finite fields; a wrong muGraph passes with probability <= 2^-56.8.
#include "../../forms/layer_norm_linear/prologue.cuh"
#include "../../forms/layer_norm_linear/register_operand.cuh"
#include "../../forms/layer_norm_linear/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 4096, N = 6144)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<48>, Warps<8>, Chunks<2>, Stages<3>>;
using UpTo16M =
    AfterPrologue<Shape, Tokens<16>, Rows<48>, Stages<8>, Groups<2>, Blocks<1>, PrologueWarps<4>>;
using UpTo32M =
    AfterPrologue<Shape, Tokens<32>, Rows<48>, Stages<6>, Groups<2>, Blocks<1>, PrologueWarps<4>>;
using AnyM =
    AfterPrologue<Shape, Tokens<64>, Rows<48>, Stages<4>, Groups<2>, Blocks<1>, PrologueWarps<4>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(layer_norm_linear_K4096_N6144_fp16, {3, Shape::K})

}  // namespace mirage::generated
