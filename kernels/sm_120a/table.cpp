// mirage-kernels generate RECIPE --arch sm_120a
//
// Which kernel serves which recipe, element type and static extents.

#include "launch.h"

namespace mirage {
namespace generated {
cudaError_t gated_mlp_K4096_N4096_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t gated_mlp_K4096_N4096_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K4096_N6144_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K4096_N6144_fp16(const LaunchArgs&, cudaStream_t);
}  // namespace generated

const Kernel kKernels[] = {
  {"gated_mlp", "bf16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::gated_mlp_K4096_N4096_bf16, "gated_mlp/K4096_N4096_bf16",
   64, ""},
  {"gated_mlp", "fp16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::gated_mlp_K4096_N4096_fp16, "gated_mlp/K4096_N4096_fp16",
   64, ""},
  {"rms_norm_linear", "bf16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_K4096_N6144_bf16, "rms_norm_linear/K4096_N6144_bf16",
   64, ""},
  {"rms_norm_linear", "fp16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_K4096_N6144_fp16, "rms_norm_linear/K4096_N6144_fp16",
   64, ""},
};
const int kKernelCount = 4;

const AttentionKernel kAttentionKernels[] = {{}};  // none
const int kAttentionKernelCount = 0;

const char* const kArch = "sm_120a";

}  // namespace mirage
