// Launches of the recipe rope_append: the op in front of gqa, without norms.
#pragma once

#include <vector>

#include <cuda_runtime.h>

#include "append_inputs.h"
#include "general_kernels.h"

namespace mirage {

// The kernel of this build that serves a call in "fp16" or "bf16"; null where there is none.
const GeneralKernel* find_rope_append(const AppendInputs& in, const char* dtype);

// What a launch is given, in the order of recipes/rope_append.py: inputs, index tensors, results.
class RopeAppendLaunch {
 public:
  // `q` is the result.
  RopeAppendLaunch(const AppendInputs& in, const Tensor& q);

  cudaError_t run(const GeneralKernel& kernel, cudaStream_t stream) const;

 private:
  void add(const void* at, const std::vector<int64_t>& strides);
  void add_parts(const void* at, std::vector<int64_t> strides);
  void add_index(const Tensor& numbers);

  bool interleaved_;
  int64_t bytes_, rotated_, rest_;  // of an element; elements of a head that rotate, and others
  std::vector<void*> tensors_;
  std::vector<int64_t> strides_, dims_;
};

}  // namespace mirage
