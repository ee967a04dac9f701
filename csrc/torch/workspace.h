// What a launch gets beside its arguments: a workspace, and a tag.
#pragma once

#include <cstdint>

#include <torch/csrc/stable/tensor.h>

namespace mirage {

// Bytes on the device of `like`. They are written and read until the kernel ends; freed before,
// PyTorch's allocator gives them to later launches of the same stream only.
torch::stable::Tensor new_workspace(int64_t bytes, const torch::stable::Tensor& like);

// A number that memory does not hold by chance, another one at every call. Kernels of one stream
// may share memory for their workspaces, and may find there what an earlier one left: the tag tells
// its own flags from those.
uint64_t next_launch_tag();

}  // namespace mirage
