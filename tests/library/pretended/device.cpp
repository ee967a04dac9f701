// Stands in for csrc/torch/device.cpp where there is no GPU: the CPU counts as one.
#include "device.h"

namespace mirage {

std::string architecture_complaint(const std::string&, int, int, const std::string&) { return ""; }

bool is_on_gpu(const torch::stable::Tensor&) { return true; }

void check_device(int32_t) {}

int32_t multiprocessors(int32_t) { return 132; }

void launch(const Kernel& kernel, const LaunchArgs& args, int32_t) { kernel.launch(args, nullptr); }

void launch(const AttentionKernel& kernel, const AttentionArgs& args, int32_t) {
  kernel.launch(args, nullptr);
}

void launch(AppendFn kernel, const AppendArgs& args, int32_t) { kernel(args, nullptr); }

}  // namespace mirage
