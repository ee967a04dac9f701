// mirage-kernels generate RECIPE --arch sm_90a
//
// Which kernel serves which recipe, element type and static extents.

#include "launch.h"

namespace mirage {
namespace generated {
cudaError_t rms_norm_linear_K4096_N4096_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K4096_N4096_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K4096_N6144_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K4096_N6144_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K8192_N10240_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K8192_N10240_fp16(const LaunchArgs&, cudaStream_t);
}  // namespace generated

const Kernel kKernels[] = {
  {"rms_norm_linear", "bf16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::rms_norm_linear_K4096_N4096_bf16, "rms_norm_linear/K4096_N4096_bf16"},
  {"rms_norm_linear", "fp16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::rms_norm_linear_K4096_N4096_fp16, "rms_norm_linear/K4096_N4096_fp16"},
  {"rms_norm_linear", "bf16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_K4096_N6144_bf16, "rms_norm_linear/K4096_N6144_bf16"},
  {"rms_norm_linear", "fp16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_K4096_N6144_fp16, "rms_norm_linear/K4096_N6144_fp16"},
  {"rms_norm_linear", "bf16", {{"K", 8192}, {"N", 10240}}, 2,
   generated::rms_norm_linear_K8192_N10240_bf16, "rms_norm_linear/K8192_N10240_bf16"},
  {"rms_norm_linear", "fp16", {{"K", 8192}, {"N", 10240}}, 2,
   generated::rms_norm_linear_K8192_N10240_fp16, "rms_norm_linear/K8192_N10240_fp16"},
};
const int kKernelCount = 6;
const char* const kArch = "sm_90a";

}  // namespace mirage
