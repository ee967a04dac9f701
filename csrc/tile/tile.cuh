// The whole device vocabulary of emitted kernels.
#pragma once

#include "tile/contract.cuh"
#include "tile/edges.cuh"
#include "tile/elementwise.cuh"
#include "tile/epilogue.cuh"
#include "tile/fragments.cuh"
#include "tile/grid.cuh"
#include "tile/kept.cuh"
#include "tile/lines.cuh"
#include "tile/meeting.cuh"
#include "tile/pipeline.cuh"
#include "tile/token_values.cuh"
