// What a launch gets beside its arguments: a workspace; the tag is in launch_tag.h.
#pragma once

#include <cstdint>

#include <torch/csrc/stable/tensor.h>

#include "launch_tag.h"

namespace mirage {

// Bytes on the device of `like`. They are written and read until the kernel ends; freed before,
// PyTorch's allocator gives them to later launches of the same stream only.
torch::stable::Tensor new_workspace(int64_t bytes, const torch::stable::Tensor& like);

}  // namespace mirage
