// Prologue kernels: a first launch transforms the tokens that the main kernel of the call
// multiplies.
#pragma once

#include "tile/row_wise/rows.cuh"

MIRAGE_SCHEDULE(AfterPrologue)
MIRAGE_KNOB(PrologueWarps)

namespace mirage::tile {

// Returns when the previous kernels have ended, and then lets the main kernel start, which reads
// its first weights at once. (Starting it sooner, where weights are constant, delayed the tokens:
// 12.6 us against 12.3, 4096 -> 4096, 64 tokens.)
__device__ inline void launch_prologue() {
  grid_dependency_wait();
  launch_dependents();
}

// The main kernel's call: input `index` is the workspace, lines of `depth` elements.
inline LaunchArgs launch_behind(const LaunchArgs& args, int index, int64_t depth) {
  LaunchArgs given = args;
  given.inputs[index] = args.workspace;
  given.row_strides[index] = depth;
  given.constant_weights = true;
  return given;
}

}  // namespace mirage::tile
