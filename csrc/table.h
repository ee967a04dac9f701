// Makes the dispatch tables of what an emitted table.cpp lists: KERNELS, ATTENTION_KERNELS, ARCH.
#pragma once

#include <initializer_list>

#include "launch.h"

namespace mirage {
namespace generated {
#define PLAIN(recipe, stem, ...) cudaError_t recipe##_##stem(const LaunchArgs&, cudaStream_t);
#define SPACE(recipe, stem, ...) \
  PLAIN(recipe, stem) int64_t recipe##_##stem##_workspace(const LaunchArgs&);
#define ATTENTION(recipe, stem, ...)                               \
  cudaError_t recipe##_##stem(const AttentionArgs&, cudaStream_t); \
  int64_t recipe##_##stem##_workspace(const AttentionArgs&);
KERNELS(PLAIN, SPACE)
ATTENTION_KERNELS(ATTENTION)
#undef PLAIN
#undef SPACE
#undef ATTENTION
}  // namespace generated

constexpr int count(std::initializer_list<StaticDim> dims) { return static_cast<int>(dims.size()); }

// clang-format off
#define ROW(recipe, stem, dtype, most, options, workspace, ...)                     \
  {#recipe, #dtype, {__VA_ARGS__}, count({__VA_ARGS__}), generated::recipe##_##stem, \
   #recipe "/" #stem, most, options, workspace},
#define PLAIN(recipe, stem, dtype, most, options, ...) \
  ROW(recipe, stem, dtype, most, options, nullptr, __VA_ARGS__)
#define SPACE(recipe, stem, dtype, most, options, ...) \
  ROW(recipe, stem, dtype, most, options, generated::recipe##_##stem##_workspace, __VA_ARGS__)
#define ATTENTION(recipe, stem, dtype, options, ...)                                 \
  {#recipe, #dtype, {__VA_ARGS__}, count({__VA_ARGS__}), generated::recipe##_##stem, \
   generated::recipe##_##stem##_workspace, #recipe "/" #stem, options},
// clang-format on

// An array has an element more than it counts: it may have no other.
const Kernel kKernels[] = {KERNELS(PLAIN, SPACE){}};
const int kKernelCount = sizeof(kKernels) / sizeof(Kernel) - 1;
const AttentionKernel kAttentionKernels[] = {ATTENTION_KERNELS(ATTENTION){}};
const int kAttentionKernelCount = sizeof(kAttentionKernels) / sizeof(AttentionKernel) - 1;
const char* const kArch = ARCH;

}  // namespace mirage
