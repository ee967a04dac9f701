// mirage-kernels generate lora_linear_full --arch sm_90a --dtype fp16 --shape K=4096,N=4096,R=64
// Shape   Llama-3-8B q_proj and o_proj, TP 1 (no bias)
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.9.
#include "../../forms/lora_linear_batched/producers.cuh"
#include "../../forms/lora_linear_batched/register_operand.cuh"
#include "../../forms/lora_linear_batched/sliced_k.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__half, K = 4096, N = 4096, R = 64)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<32>, Warps<8>, Chunks<2>, Stages<2>, Slices<8>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<32>, Warps<8>, Chunks<2>, Stages<2>, Slices<8>>;
using UpTo32M =
    RegisterOperand<Shape, Tokens<32>, Rows<64>, Stages<4>, Groups<2>, Blocks<2>, Slices<8>>;
using AnyM =
    RegisterOperand<Shape, Tokens<64>, Rows<64>, Stages<4>, Groups<2>, Blocks<2>, Slices<8>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(lora_linear_batched_K4096_N4096_R64_fp16, {1, Shape::K}, {2, Shape::K}, {3, Shape::R})

}  // namespace mirage::generated
