// mirage-kernels generate RECIPE --arch sm_90a
//
// Which kernel serves which recipe, element type and static extents.

#include "launch.h"

namespace mirage {
namespace generated {
cudaError_t gated_mlp_K4096_N14336_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t gated_mlp_K4096_N14336_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t gated_mlp_K4096_N4096_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t gated_mlp_K4096_N4096_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t lora_linear_K256_N4096_R16_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t lora_linear_K256_N4096_R16_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t lora_linear_K4096_N4096_R16_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t lora_linear_K4096_N4096_R16_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t lora_linear_K4096_N4096_R64_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t lora_linear_K4096_N4096_R64_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_gated_mlp_K4096_N14336_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_gated_mlp_K4096_N14336_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K4096_N4096_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K4096_N4096_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K4096_N6144_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K4096_N6144_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K8192_N10240_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_K8192_N10240_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_full_K3584_N4608_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_full_K3584_N4608_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_full_K4096_N6144_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_full_K4096_N6144_fp16(const LaunchArgs&, cudaStream_t);
}  // namespace generated

const Kernel kKernels[] = {
  {"gated_mlp", "bf16", {{"K", 4096}, {"N", 14336}}, 2,
   generated::gated_mlp_K4096_N14336_bf16, "gated_mlp/K4096_N14336_bf16",
   32, ""},
  {"gated_mlp", "fp16", {{"K", 4096}, {"N", 14336}}, 2,
   generated::gated_mlp_K4096_N14336_fp16, "gated_mlp/K4096_N14336_fp16",
   32, ""},
  {"gated_mlp", "bf16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::gated_mlp_K4096_N4096_bf16, "gated_mlp/K4096_N4096_bf16",
   64, ""},
  {"gated_mlp", "fp16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::gated_mlp_K4096_N4096_fp16, "gated_mlp/K4096_N4096_fp16",
   64, ""},
  {"lora_linear", "bf16", {{"K", 256}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_K256_N4096_R16_bf16, "lora_linear/K256_N4096_R16_bf16",
   128, ""},
  {"lora_linear", "fp16", {{"K", 256}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_K256_N4096_R16_fp16, "lora_linear/K256_N4096_R16_fp16",
   128, ""},
  {"lora_linear", "bf16", {{"K", 4096}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_K4096_N4096_R16_bf16, "lora_linear/K4096_N4096_R16_bf16",
   64, ""},
  {"lora_linear", "fp16", {{"K", 4096}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_K4096_N4096_R16_fp16, "lora_linear/K4096_N4096_R16_fp16",
   64, ""},
  {"lora_linear", "bf16", {{"K", 4096}, {"N", 4096}, {"R", 64}}, 3,
   generated::lora_linear_K4096_N4096_R64_bf16, "lora_linear/K4096_N4096_R64_bf16",
   32, ""},
  {"lora_linear", "fp16", {{"K", 4096}, {"N", 4096}, {"R", 64}}, 3,
   generated::lora_linear_K4096_N4096_R64_fp16, "lora_linear/K4096_N4096_R64_fp16",
   32, ""},
  {"rms_norm_gated_mlp", "bf16", {{"K", 4096}, {"N", 14336}}, 2,
   generated::rms_norm_gated_mlp_K4096_N14336_bf16, "rms_norm_gated_mlp/K4096_N14336_bf16",
   32, ""},
  {"rms_norm_gated_mlp", "fp16", {{"K", 4096}, {"N", 14336}}, 2,
   generated::rms_norm_gated_mlp_K4096_N14336_fp16, "rms_norm_gated_mlp/K4096_N14336_fp16",
   32, ""},
  {"rms_norm_linear", "bf16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::rms_norm_linear_K4096_N4096_bf16, "rms_norm_linear/K4096_N4096_bf16",
   64, ""},
  {"rms_norm_linear", "fp16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::rms_norm_linear_K4096_N4096_fp16, "rms_norm_linear/K4096_N4096_fp16",
   64, ""},
  {"rms_norm_linear", "bf16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_K4096_N6144_bf16, "rms_norm_linear/K4096_N6144_bf16",
   64, ""},
  {"rms_norm_linear", "fp16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_K4096_N6144_fp16, "rms_norm_linear/K4096_N6144_fp16",
   64, ""},
  {"rms_norm_linear", "bf16", {{"K", 8192}, {"N", 10240}}, 2,
   generated::rms_norm_linear_K8192_N10240_bf16, "rms_norm_linear/K8192_N10240_bf16",
   32, ""},
  {"rms_norm_linear", "fp16", {{"K", 8192}, {"N", 10240}}, 2,
   generated::rms_norm_linear_K8192_N10240_fp16, "rms_norm_linear/K8192_N10240_fp16",
   64, ""},
  {"rms_norm_linear_full", "bf16", {{"K", 3584}, {"N", 4608}}, 2,
   generated::rms_norm_linear_full_K3584_N4608_bf16, "rms_norm_linear_full/K3584_N4608_bf16",
   32, "bias weight_offset"},
  {"rms_norm_linear_full", "fp16", {{"K", 3584}, {"N", 4608}}, 2,
   generated::rms_norm_linear_full_K3584_N4608_fp16, "rms_norm_linear_full/K3584_N4608_fp16",
   64, "bias weight_offset"},
  {"rms_norm_linear_full", "bf16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_full_K4096_N6144_bf16, "rms_norm_linear_full/K4096_N6144_bf16",
   64, "bias weight_offset"},
  {"rms_norm_linear_full", "fp16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_full_K4096_N6144_fp16, "rms_norm_linear_full/K4096_N6144_fp16",
   64, "bias weight_offset"},
};
const int kKernelCount = 22;
const char* const kArch = "sm_90a";

}  // namespace mirage
