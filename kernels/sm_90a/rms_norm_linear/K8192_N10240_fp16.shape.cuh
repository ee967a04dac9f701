// mirage-kernels generate rms_norm_linear --arch sm_90a --dtype fp16 --shape K=8192,N=10240
//
// Shape  what the plans in the files beside this one have in common.
#pragma once

#include "tile/tile.cuh"

namespace mirage::generated {
namespace {

using T = __half;
constexpr int K = 8192;   // contracted
constexpr int N = 10240;  // rows of the weights

template <class Knobs>
constexpr int kThreads = Knobs::kWarps * tile::kWarpLanes;

}  // namespace
}  // namespace mirage::generated
