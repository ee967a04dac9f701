// mirage-kernels generate lora_linear --arch sm_90a --dtype fp16 --shape K=4096,N=4096,R=64
//
// Shape  what the plans in the files beside this one have in common.
#pragma once

#include "tile/tile.cuh"

namespace mirage::generated {
namespace {

using T = __half;
constexpr int K = 4096;  // contracted
constexpr int N = 4096;  // rows of the weights
constexpr int R = 64;    // contracted after the loop

template <class Knobs>
constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;

}  // namespace
}  // namespace mirage::generated
