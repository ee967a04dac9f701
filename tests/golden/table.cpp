// mirage-kernels generate RECIPE --arch sm_90a
//
// Which kernel serves which recipe, element type and static extents.

#include "launch.h"

namespace mirage {
namespace generated {
cudaError_t rms_norm_linear_K72_N40_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K72_N40_fp16(const LaunchArgs&, cudaStream_t);
}  // namespace generated

const Kernel kKernels[] = {
  {"rms_norm_linear", "bf16", {{"K", 72}, {"N", 40}}, 2,
   generated::rms_norm_linear_K72_N40_bf16, "rms_norm_linear/K72_N40_bf16",
   64, ""},
  {"rms_norm_linear", "fp16", {{"K", 72}, {"N", 40}}, 2,
   generated::rms_norm_linear_K72_N40_fp16, "rms_norm_linear/K72_N40_fp16",
   64, ""},
};
const int kKernelCount = 2;

const AttentionKernel kAttentionKernels[] = {{}};  // none
const int kAttentionKernelCount = 0;

const char* const kArch = "sm_90a";

}  // namespace mirage
