// Programmatic dependent launch (PDL): a kernel starts while the previous one still runs.
//
// Before grid_dependency_wait() a kernel writes nothing and reads only weights, and those only
// where the caller says that the previous kernel does not write them. A few weights may be
// prefetched into L2 without that: later writes stay visible. (Prefetching many makes kernels
// slower: they are evicted before they are needed.)
#pragma once

namespace mirage::tile {

// Host code may use it too: a build is for one architecture.
#if defined(__CUDA_ARCH_LIST__) && __CUDA_ARCH_LIST__ >= 900
constexpr bool kHasDependentLaunch = true;
#else
constexpr bool kHasDependentLaunch = false;
#endif

// Where programs begin with a kernel, it lets the next one start when what came before the program
// has ended; see early_weights.py. Its object defines this before it includes the kernel's source.
#ifdef MIRAGE_NEXT_STARTS_AFTER_WAIT
constexpr bool kNextStartsAfterWait = true;
#else
constexpr bool kNextStartsAfterWait = false;
#endif

// Lets the next kernel of the stream start as soon as there is room for its blocks. The first
// thread of a block that executes it counts, or the end of the block.
__device__ inline void launch_dependents_now() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// The same, unless grid_dependency_wait() does it.
__device__ inline void launch_dependents() {
  if (!kNextStartsAfterWait) launch_dependents_now();
}

// Returns when the previous kernels have ended and all their writes are visible.
__device__ inline void grid_dependency_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  if (kNextStartsAfterWait) launch_dependents_now();
}

// A pointer to device memory, found here. Left alone, nvcc finds addresses right before they are
// used, behind grid_dependency_wait(), where every instruction makes the kernel longer: before it
// there is time.
template <class T>
__device__ T* found_early(T* at) {
  size_t address = __cvta_generic_to_global(at);
  asm volatile("" : "+l"(address));
  return static_cast<T*>(__cvta_global_to_generic(address));
}
__device__ inline int found_early(int number) {
  asm volatile("" : "+r"(number));
  return number;
}
__device__ inline int64_t found_early(int64_t number) {
  asm volatile("" : "+l"(number));
  return number;
}

// Prefetches the cache line of an address into L2; without PDL kernels do not overlap and it would
// be no use.
__device__ inline void prefetch_l2(const void* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

}  // namespace mirage::tile
