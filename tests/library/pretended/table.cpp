// Stands in for an emitted table: kernels that print what they are launched with.
#include <cstdio>

#include "launch.h"

namespace mirage {
namespace {

constexpr int kInputs = 5;

// Each input as its first element's bits and its row stride; the tests fill a tensor with one
// value.
template <int kIndex>
cudaError_t tell(const LaunchArgs& args, cudaStream_t) {
  std::printf("%s M=%d |", kKernels[kIndex].name, static_cast<int>(args.dims[0]));
  for (int i = 0; i < kInputs; ++i) {
    const auto* bits = static_cast<const unsigned short*>(args.inputs[i]);
    if (bits == nullptr) {
      std::printf(" -");
    } else {
      std::printf(" %04x/%d", *bits, static_cast<int>(args.row_strides[i]));
    }
  }
  std::printf(" | %g %g | %d\n", args.scalars[0], args.scalars[1],
              (args.outputs[0] != nullptr) + (args.outputs[1] != nullptr));
  std::fflush(stdout);
  return cudaSuccess;
}

#define MIRAGE_DIMS {{"K", 64}, {"N", 96}}, 2

}  // namespace

const Kernel kKernels[] = {
    {"rms_norm_linear", "fp16", MIRAGE_DIMS, tell<0>, "rms", 4, ""},
    {"rms_norm_linear_full", "fp16", MIRAGE_DIMS, tell<1>, "rms_full", 4, "bias weight_offset"},
    {"layer_norm_linear", "bf16", MIRAGE_DIMS, tell<2>, "layer", 0, ""},
    {"layer_norm_linear_full", "fp16", MIRAGE_DIMS, tell<3>, "layer_full", 0, "norm_bias bias"},
    {"lora_linear", "fp16", {{"K", 64}, {"N", 96}, {"R", 8}}, 3, tell<4>, "lora", 0, ""},
    {"gated_mlp", "fp16", MIRAGE_DIMS, tell<5>, "gated", 0, nullptr},
    {"rms_norm_geglu_mlp", "fp16", MIRAGE_DIMS, tell<6>, "rms_geglu", 0, ""},
    {"rms_norm_linear", "bf16", MIRAGE_DIMS, tell<7>, "rms_all", 0, "bias residual weight_offset"},
};
const int kKernelCount = 8;
const char* const kArch = "sm_90a";

}  // namespace mirage
