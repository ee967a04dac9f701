// Programmatic dependent launch: a kernel starts while the one before it in the stream still runs.
//
// Before grid_dependency_wait() a kernel reads nothing but weights, and those only where the caller
// has promised that the kernel before does not write them; it writes nothing. A few weights may
// come into L2 early without a promise: what is written later is seen all the same. (Many make
// kernels slower: they are gone again when they are needed.)
#pragma once

namespace mirage::tile {

// Host code may ask: a build is for one architecture.
#if defined(__CUDA_ARCH_LIST__) && __CUDA_ARCH_LIST__ >= 900
constexpr bool kHasDependentLaunch = true;
#else
constexpr bool kHasDependentLaunch = false;
#endif

// Lets the next kernel of the stream start as soon as there is room for its blocks.
__device__ inline void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Returns when the kernels before have ended and all that they wrote can be seen.
__device__ inline void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Brings the line of L2 that holds an address there; pointless where kernels do not overlap.
__device__ inline void prefetch_l2(const void* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

}  // namespace mirage::tile
