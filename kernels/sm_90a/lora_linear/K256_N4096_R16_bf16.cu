// mirage-kernels generate lora_linear --arch sm_90a --dtype bf16 --shape K=256,N=4096,R=16
// Shape   the Mirage paper's LoRA
// Proved  16 random draws over finite fields; a wrong muGraph passes with probability <= 2^-57.9.
#include "../../forms/lora_linear/sliced_k_K256.cuh"

namespace mirage::generated {
namespace {

MIRAGE_SHAPE(__nv_bfloat16, K = 256, N = 4096, R = 16)
using UpTo8M = SlicedK<Shape, Tokens<8>, Rows<32>, Warps<8>, Chunks<2>, Stages<2>>;
using UpTo16M = SlicedK<Shape, Tokens<16>, Rows<32>, Warps<8>, Chunks<2>, Stages<2>>;
using UpTo32M = SlicedK<Shape, Tokens<32>, Rows<32>, Warps<8>, Chunks<2>, Stages<2>>;
using AnyM = SlicedK<Shape, Tokens<64>, Rows<16>, Warps<4>, Chunks<2>, Stages<2>>;
using Variants = Kernels<UpTo<8, UpTo8M>, UpTo<16, UpTo16M>, UpTo<32, UpTo32M>, Any<AnyM>>;

}  // namespace

MIRAGE_KERNEL(lora_linear_K256_N4096_R16_bf16, {1, Shape::K}, {2, Shape::K}, {3, Shape::R})

}  // namespace mirage::generated
