// The device vocabulary of sliced-K and row-wise kernels; other schedules include their folder,
// too.
#pragma once

#include "tile/copy/predicated.cuh"
#include "tile/epilogue.cuh"
#include "tile/grid.cuh"
#include "tile/math/elementwise.cuh"
#include "tile/mma/fragments.cuh"
#include "tile/mma/resident.cuh"
#include "tile/row_wise/rows.cuh"
#include "tile/sliced_k/pipeline.cuh"
