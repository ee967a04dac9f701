// Workspaces from PyTorch's allocator.
#include "workspace.h"

#include <vector>

#include <torch/csrc/stable/ops.h>

namespace mirage {

torch::stable::Tensor new_workspace(int64_t bytes, const torch::stable::Tensor& like) {
  const std::vector<int64_t> sizes{bytes};
  return torch::stable::new_empty(like, sizes, torch::headeronly::ScalarType::Byte);
}

}  // namespace mirage
