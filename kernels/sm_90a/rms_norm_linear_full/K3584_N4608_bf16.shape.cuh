// mirage-kernels generate rms_norm_linear_full --arch sm_90a --dtype bf16 --shape K=3584,N=4608
//
// Shape  what the plans in the files beside this one have in common.
#pragma once

#include "tile/tile.cuh"

namespace mirage::generated {
namespace {

using T = __nv_bfloat16;
constexpr int K = 3584;  // contracted
constexpr int N = 4608;  // rows of the weights

template <class Knobs>
constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;

}  // namespace
}  // namespace mirage::generated
