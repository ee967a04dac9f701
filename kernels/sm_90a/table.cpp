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
cudaError_t gelu_tanh_and_mul_N14336_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t gelu_tanh_and_mul_N14336_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t layer_norm_K4096_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t layer_norm_K4096_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t layer_norm_linear_K4096_N4096_bf16(const LaunchArgs&, cudaStream_t);
int64_t layer_norm_linear_K4096_N4096_bf16_workspace(const LaunchArgs&);
cudaError_t layer_norm_linear_K4096_N4096_fp16(const LaunchArgs&, cudaStream_t);
int64_t layer_norm_linear_K4096_N4096_fp16_workspace(const LaunchArgs&);
cudaError_t layer_norm_linear_K4096_N6144_bf16(const LaunchArgs&, cudaStream_t);
int64_t layer_norm_linear_K4096_N6144_bf16_workspace(const LaunchArgs&);
cudaError_t layer_norm_linear_K4096_N6144_fp16(const LaunchArgs&, cudaStream_t);
int64_t layer_norm_linear_K4096_N6144_fp16_workspace(const LaunchArgs&);
cudaError_t layer_norm_linear_full_K4096_N4096_bf16(const LaunchArgs&, cudaStream_t);
int64_t layer_norm_linear_full_K4096_N4096_bf16_workspace(const LaunchArgs&);
cudaError_t layer_norm_linear_full_K4096_N4096_fp16(const LaunchArgs&, cudaStream_t);
int64_t layer_norm_linear_full_K4096_N4096_fp16_workspace(const LaunchArgs&);
cudaError_t layer_norm_linear_full_K4096_N6144_bf16(const LaunchArgs&, cudaStream_t);
int64_t layer_norm_linear_full_K4096_N6144_bf16_workspace(const LaunchArgs&);
cudaError_t layer_norm_linear_full_K4096_N6144_fp16(const LaunchArgs&, cudaStream_t);
int64_t layer_norm_linear_full_K4096_N6144_fp16_workspace(const LaunchArgs&);
cudaError_t lora_linear_K256_N4096_R16_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t lora_linear_K256_N4096_R16_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t lora_linear_K4096_N4096_R16_bf16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_K4096_N4096_R16_bf16_workspace(const LaunchArgs&);
cudaError_t lora_linear_K4096_N4096_R16_fp16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_K4096_N4096_R16_fp16_workspace(const LaunchArgs&);
cudaError_t lora_linear_K4096_N4096_R64_bf16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_K4096_N4096_R64_bf16_workspace(const LaunchArgs&);
cudaError_t lora_linear_K4096_N4096_R64_fp16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_K4096_N4096_R64_fp16_workspace(const LaunchArgs&);
cudaError_t lora_linear_batched_K4096_N4096_R16_bf16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_batched_K4096_N4096_R16_bf16_workspace(const LaunchArgs&);
cudaError_t lora_linear_batched_K4096_N4096_R16_fp16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_batched_K4096_N4096_R16_fp16_workspace(const LaunchArgs&);
cudaError_t lora_linear_batched_K4096_N4096_R64_bf16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_batched_K4096_N4096_R64_bf16_workspace(const LaunchArgs&);
cudaError_t lora_linear_batched_K4096_N4096_R64_fp16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_batched_K4096_N4096_R64_fp16_workspace(const LaunchArgs&);
cudaError_t lora_linear_full_K4096_N4096_R16_bf16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_full_K4096_N4096_R16_bf16_workspace(const LaunchArgs&);
cudaError_t lora_linear_full_K4096_N4096_R16_fp16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_full_K4096_N4096_R16_fp16_workspace(const LaunchArgs&);
cudaError_t lora_linear_full_K4096_N4096_R64_bf16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_full_K4096_N4096_R64_bf16_workspace(const LaunchArgs&);
cudaError_t lora_linear_full_K4096_N4096_R64_fp16(const LaunchArgs&, cudaStream_t);
int64_t lora_linear_full_K4096_N4096_R64_fp16_workspace(const LaunchArgs&);
cudaError_t ntrans_K4096_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t ntrans_K4096_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_K3584_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_K3584_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_K4096_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_K4096_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_K8192_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_K8192_fp16(const LaunchArgs&, cudaStream_t);
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
cudaError_t rms_norm_linear_residual_K3584_N4608_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_residual_K3584_N4608_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_residual_K4096_N6144_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_linear_residual_K4096_N6144_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_residual_K3584_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_residual_K3584_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_residual_K4096_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_residual_K4096_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_residual_K8192_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t rms_norm_residual_K8192_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t silu_and_mul_N14336_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t silu_and_mul_N14336_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t silu_and_mul_N4096_bf16(const LaunchArgs&, cudaStream_t);
cudaError_t silu_and_mul_N4096_fp16(const LaunchArgs&, cudaStream_t);
cudaError_t gqa_D128_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D128_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_D128_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D128_fp16_workspace(const AttentionArgs&);
cudaError_t gqa_D192_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D192_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_D192_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D192_fp16_workspace(const AttentionArgs&);
cudaError_t gqa_D256_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D256_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_D256_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D256_fp16_workspace(const AttentionArgs&);
cudaError_t gqa_D64_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D64_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_D64_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D64_fp16_workspace(const AttentionArgs&);
cudaError_t gqa_D96_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D96_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_D96_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_D96_fp16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D128_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D128_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D128_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D128_fp16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D192_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D192_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D192_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D192_fp16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D256_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D256_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D256_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D256_fp16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D64_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D64_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D64_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D64_fp16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D96_bf16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D96_bf16_workspace(const AttentionArgs&);
cudaError_t gqa_full_D96_fp16(const AttentionArgs&, cudaStream_t);
int64_t gqa_full_D96_fp16_workspace(const AttentionArgs&);
cudaError_t mla_decode_C512_P64_bf16(const AttentionArgs&, cudaStream_t);
int64_t mla_decode_C512_P64_bf16_workspace(const AttentionArgs&);
cudaError_t mla_decode_C512_P64_fp16(const AttentionArgs&, cudaStream_t);
int64_t mla_decode_C512_P64_fp16_workspace(const AttentionArgs&);
cudaError_t qk_layer_norm_attention_D128_bf16(const AttentionArgs&, cudaStream_t);
int64_t qk_layer_norm_attention_D128_bf16_workspace(const AttentionArgs&);
cudaError_t qk_layer_norm_attention_D128_fp16(const AttentionArgs&, cudaStream_t);
int64_t qk_layer_norm_attention_D128_fp16_workspace(const AttentionArgs&);
cudaError_t qk_layer_norm_attention_D64_bf16(const AttentionArgs&, cudaStream_t);
int64_t qk_layer_norm_attention_D64_bf16_workspace(const AttentionArgs&);
cudaError_t qk_layer_norm_attention_D64_fp16(const AttentionArgs&, cudaStream_t);
int64_t qk_layer_norm_attention_D64_fp16_workspace(const AttentionArgs&);
cudaError_t qk_norm_attention_D128_bf16(const AttentionArgs&, cudaStream_t);
int64_t qk_norm_attention_D128_bf16_workspace(const AttentionArgs&);
cudaError_t qk_norm_attention_D128_fp16(const AttentionArgs&, cudaStream_t);
int64_t qk_norm_attention_D128_fp16_workspace(const AttentionArgs&);
cudaError_t qk_norm_attention_D256_bf16(const AttentionArgs&, cudaStream_t);
int64_t qk_norm_attention_D256_bf16_workspace(const AttentionArgs&);
cudaError_t qk_norm_attention_D256_fp16(const AttentionArgs&, cudaStream_t);
int64_t qk_norm_attention_D256_fp16_workspace(const AttentionArgs&);
cudaError_t qk_norm_attention_D64_bf16(const AttentionArgs&, cudaStream_t);
int64_t qk_norm_attention_D64_bf16_workspace(const AttentionArgs&);
cudaError_t qk_norm_attention_D64_fp16(const AttentionArgs&, cudaStream_t);
int64_t qk_norm_attention_D64_fp16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D128_bf16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D128_bf16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D128_fp16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D128_fp16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D192_bf16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D192_bf16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D192_fp16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D192_fp16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D256_bf16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D256_bf16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D256_fp16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D256_fp16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D64_bf16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D64_bf16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D64_fp16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D64_fp16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D96_bf16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D96_bf16_workspace(const AttentionArgs&);
cudaError_t sliding_window_attention_D96_fp16(const AttentionArgs&, cudaStream_t);
int64_t sliding_window_attention_D96_fp16_workspace(const AttentionArgs&);
}  // namespace generated

const Kernel kKernels[] = {
  {"gated_mlp", "bf16", {{"K", 4096}, {"N", 14336}}, 2,
   generated::gated_mlp_K4096_N14336_bf16, "gated_mlp/K4096_N14336_bf16",
   64, ""},
  {"gated_mlp", "fp16", {{"K", 4096}, {"N", 14336}}, 2,
   generated::gated_mlp_K4096_N14336_fp16, "gated_mlp/K4096_N14336_fp16",
   64, ""},
  {"gated_mlp", "bf16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::gated_mlp_K4096_N4096_bf16, "gated_mlp/K4096_N4096_bf16",
   64, ""},
  {"gated_mlp", "fp16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::gated_mlp_K4096_N4096_fp16, "gated_mlp/K4096_N4096_fp16",
   64, ""},
  {"gelu_tanh_and_mul", "bf16", {{"N", 14336}}, 1,
   generated::gelu_tanh_and_mul_N14336_bf16, "gelu_tanh_and_mul/N14336_bf16",
   0, ""},
  {"gelu_tanh_and_mul", "fp16", {{"N", 14336}}, 1,
   generated::gelu_tanh_and_mul_N14336_fp16, "gelu_tanh_and_mul/N14336_fp16",
   0, ""},
  {"layer_norm", "bf16", {{"K", 4096}}, 1,
   generated::layer_norm_K4096_bf16, "layer_norm/K4096_bf16",
   0, "norm_bias"},
  {"layer_norm", "fp16", {{"K", 4096}}, 1,
   generated::layer_norm_K4096_fp16, "layer_norm/K4096_fp16",
   0, "norm_bias"},
  {"layer_norm_linear", "bf16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::layer_norm_linear_K4096_N4096_bf16, "layer_norm_linear/K4096_N4096_bf16",
   64, "", generated::layer_norm_linear_K4096_N4096_bf16_workspace},
  {"layer_norm_linear", "fp16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::layer_norm_linear_K4096_N4096_fp16, "layer_norm_linear/K4096_N4096_fp16",
   64, "", generated::layer_norm_linear_K4096_N4096_fp16_workspace},
  {"layer_norm_linear", "bf16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::layer_norm_linear_K4096_N6144_bf16, "layer_norm_linear/K4096_N6144_bf16",
   64, "", generated::layer_norm_linear_K4096_N6144_bf16_workspace},
  {"layer_norm_linear", "fp16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::layer_norm_linear_K4096_N6144_fp16, "layer_norm_linear/K4096_N6144_fp16",
   64, "", generated::layer_norm_linear_K4096_N6144_fp16_workspace},
  {"layer_norm_linear_full", "bf16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::layer_norm_linear_full_K4096_N4096_bf16, "layer_norm_linear_full/K4096_N4096_bf16",
   64, "norm_bias bias", generated::layer_norm_linear_full_K4096_N4096_bf16_workspace},
  {"layer_norm_linear_full", "fp16", {{"K", 4096}, {"N", 4096}}, 2,
   generated::layer_norm_linear_full_K4096_N4096_fp16, "layer_norm_linear_full/K4096_N4096_fp16",
   64, "norm_bias bias", generated::layer_norm_linear_full_K4096_N4096_fp16_workspace},
  {"layer_norm_linear_full", "bf16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::layer_norm_linear_full_K4096_N6144_bf16, "layer_norm_linear_full/K4096_N6144_bf16",
   64, "norm_bias bias", generated::layer_norm_linear_full_K4096_N6144_bf16_workspace},
  {"layer_norm_linear_full", "fp16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::layer_norm_linear_full_K4096_N6144_fp16, "layer_norm_linear_full/K4096_N6144_fp16",
   64, "norm_bias bias", generated::layer_norm_linear_full_K4096_N6144_fp16_workspace},
  {"lora_linear", "bf16", {{"K", 256}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_K256_N4096_R16_bf16, "lora_linear/K256_N4096_R16_bf16",
   128, ""},
  {"lora_linear", "fp16", {{"K", 256}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_K256_N4096_R16_fp16, "lora_linear/K256_N4096_R16_fp16",
   128, ""},
  {"lora_linear", "bf16", {{"K", 4096}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_K4096_N4096_R16_bf16, "lora_linear/K4096_N4096_R16_bf16",
   128, "", generated::lora_linear_K4096_N4096_R16_bf16_workspace},
  {"lora_linear", "fp16", {{"K", 4096}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_K4096_N4096_R16_fp16, "lora_linear/K4096_N4096_R16_fp16",
   128, "", generated::lora_linear_K4096_N4096_R16_fp16_workspace},
  {"lora_linear", "bf16", {{"K", 4096}, {"N", 4096}, {"R", 64}}, 3,
   generated::lora_linear_K4096_N4096_R64_bf16, "lora_linear/K4096_N4096_R64_bf16",
   128, "", generated::lora_linear_K4096_N4096_R64_bf16_workspace},
  {"lora_linear", "fp16", {{"K", 4096}, {"N", 4096}, {"R", 64}}, 3,
   generated::lora_linear_K4096_N4096_R64_fp16, "lora_linear/K4096_N4096_R64_fp16",
   128, "", generated::lora_linear_K4096_N4096_R64_fp16_workspace},
  {"lora_linear_batched", "bf16", {{"K", 4096}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_batched_K4096_N4096_R16_bf16, "lora_linear_batched/K4096_N4096_R16_bf16",
   128, "bias", generated::lora_linear_batched_K4096_N4096_R16_bf16_workspace},
  {"lora_linear_batched", "fp16", {{"K", 4096}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_batched_K4096_N4096_R16_fp16, "lora_linear_batched/K4096_N4096_R16_fp16",
   128, "bias", generated::lora_linear_batched_K4096_N4096_R16_fp16_workspace},
  {"lora_linear_batched", "bf16", {{"K", 4096}, {"N", 4096}, {"R", 64}}, 3,
   generated::lora_linear_batched_K4096_N4096_R64_bf16, "lora_linear_batched/K4096_N4096_R64_bf16",
   128, "bias", generated::lora_linear_batched_K4096_N4096_R64_bf16_workspace},
  {"lora_linear_batched", "fp16", {{"K", 4096}, {"N", 4096}, {"R", 64}}, 3,
   generated::lora_linear_batched_K4096_N4096_R64_fp16, "lora_linear_batched/K4096_N4096_R64_fp16",
   128, "bias", generated::lora_linear_batched_K4096_N4096_R64_fp16_workspace},
  {"lora_linear_full", "bf16", {{"K", 4096}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_full_K4096_N4096_R16_bf16, "lora_linear_full/K4096_N4096_R16_bf16",
   128, "bias", generated::lora_linear_full_K4096_N4096_R16_bf16_workspace},
  {"lora_linear_full", "fp16", {{"K", 4096}, {"N", 4096}, {"R", 16}}, 3,
   generated::lora_linear_full_K4096_N4096_R16_fp16, "lora_linear_full/K4096_N4096_R16_fp16",
   128, "bias", generated::lora_linear_full_K4096_N4096_R16_fp16_workspace},
  {"lora_linear_full", "bf16", {{"K", 4096}, {"N", 4096}, {"R", 64}}, 3,
   generated::lora_linear_full_K4096_N4096_R64_bf16, "lora_linear_full/K4096_N4096_R64_bf16",
   128, "bias", generated::lora_linear_full_K4096_N4096_R64_bf16_workspace},
  {"lora_linear_full", "fp16", {{"K", 4096}, {"N", 4096}, {"R", 64}}, 3,
   generated::lora_linear_full_K4096_N4096_R64_fp16, "lora_linear_full/K4096_N4096_R64_fp16",
   128, "bias", generated::lora_linear_full_K4096_N4096_R64_fp16_workspace},
  {"ntrans", "bf16", {{"K", 4096}}, 1,
   generated::ntrans_K4096_bf16, "ntrans/K4096_bf16",
   0, ""},
  {"ntrans", "fp16", {{"K", 4096}}, 1,
   generated::ntrans_K4096_fp16, "ntrans/K4096_fp16",
   0, ""},
  {"rms_norm", "bf16", {{"K", 3584}}, 1,
   generated::rms_norm_K3584_bf16, "rms_norm/K3584_bf16",
   0, "weight_offset"},
  {"rms_norm", "fp16", {{"K", 3584}}, 1,
   generated::rms_norm_K3584_fp16, "rms_norm/K3584_fp16",
   0, "weight_offset"},
  {"rms_norm", "bf16", {{"K", 4096}}, 1,
   generated::rms_norm_K4096_bf16, "rms_norm/K4096_bf16",
   0, "weight_offset"},
  {"rms_norm", "fp16", {{"K", 4096}}, 1,
   generated::rms_norm_K4096_fp16, "rms_norm/K4096_fp16",
   0, "weight_offset"},
  {"rms_norm", "bf16", {{"K", 8192}}, 1,
   generated::rms_norm_K8192_bf16, "rms_norm/K8192_bf16",
   0, "weight_offset"},
  {"rms_norm", "fp16", {{"K", 8192}}, 1,
   generated::rms_norm_K8192_fp16, "rms_norm/K8192_fp16",
   0, "weight_offset"},
  {"rms_norm_gated_mlp", "bf16", {{"K", 4096}, {"N", 14336}}, 2,
   generated::rms_norm_gated_mlp_K4096_N14336_bf16, "rms_norm_gated_mlp/K4096_N14336_bf16",
   64, ""},
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
   64, ""},
  {"rms_norm_linear", "fp16", {{"K", 8192}, {"N", 10240}}, 2,
   generated::rms_norm_linear_K8192_N10240_fp16, "rms_norm_linear/K8192_N10240_fp16",
   64, ""},
  {"rms_norm_linear_full", "bf16", {{"K", 3584}, {"N", 4608}}, 2,
   generated::rms_norm_linear_full_K3584_N4608_bf16, "rms_norm_linear_full/K3584_N4608_bf16",
   64, "bias weight_offset"},
  {"rms_norm_linear_full", "fp16", {{"K", 3584}, {"N", 4608}}, 2,
   generated::rms_norm_linear_full_K3584_N4608_fp16, "rms_norm_linear_full/K3584_N4608_fp16",
   32, "bias weight_offset"},
  {"rms_norm_linear_full", "bf16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_full_K4096_N6144_bf16, "rms_norm_linear_full/K4096_N6144_bf16",
   64, "bias weight_offset"},
  {"rms_norm_linear_full", "fp16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_full_K4096_N6144_fp16, "rms_norm_linear_full/K4096_N6144_fp16",
   64, "bias weight_offset"},
  {"rms_norm_linear_residual", "bf16", {{"K", 3584}, {"N", 4608}}, 2,
   generated::rms_norm_linear_residual_K3584_N4608_bf16,
   "rms_norm_linear_residual/K3584_N4608_bf16",
   16, "bias weight_offset"},
  {"rms_norm_linear_residual", "fp16", {{"K", 3584}, {"N", 4608}}, 2,
   generated::rms_norm_linear_residual_K3584_N4608_fp16,
   "rms_norm_linear_residual/K3584_N4608_fp16",
   16, "bias weight_offset"},
  {"rms_norm_linear_residual", "bf16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_residual_K4096_N6144_bf16,
   "rms_norm_linear_residual/K4096_N6144_bf16",
   16, "bias weight_offset"},
  {"rms_norm_linear_residual", "fp16", {{"K", 4096}, {"N", 6144}}, 2,
   generated::rms_norm_linear_residual_K4096_N6144_fp16,
   "rms_norm_linear_residual/K4096_N6144_fp16",
   16, "bias weight_offset"},
  {"rms_norm_residual", "bf16", {{"K", 3584}}, 1,
   generated::rms_norm_residual_K3584_bf16, "rms_norm_residual/K3584_bf16",
   0, "weight_offset"},
  {"rms_norm_residual", "fp16", {{"K", 3584}}, 1,
   generated::rms_norm_residual_K3584_fp16, "rms_norm_residual/K3584_fp16",
   0, "weight_offset"},
  {"rms_norm_residual", "bf16", {{"K", 4096}}, 1,
   generated::rms_norm_residual_K4096_bf16, "rms_norm_residual/K4096_bf16",
   0, "weight_offset"},
  {"rms_norm_residual", "fp16", {{"K", 4096}}, 1,
   generated::rms_norm_residual_K4096_fp16, "rms_norm_residual/K4096_fp16",
   0, "weight_offset"},
  {"rms_norm_residual", "bf16", {{"K", 8192}}, 1,
   generated::rms_norm_residual_K8192_bf16, "rms_norm_residual/K8192_bf16",
   0, "weight_offset"},
  {"rms_norm_residual", "fp16", {{"K", 8192}}, 1,
   generated::rms_norm_residual_K8192_fp16, "rms_norm_residual/K8192_fp16",
   0, "weight_offset"},
  {"silu_and_mul", "bf16", {{"N", 14336}}, 1,
   generated::silu_and_mul_N14336_bf16, "silu_and_mul/N14336_bf16",
   0, ""},
  {"silu_and_mul", "fp16", {{"N", 14336}}, 1,
   generated::silu_and_mul_N14336_fp16, "silu_and_mul/N14336_fp16",
   0, ""},
  {"silu_and_mul", "bf16", {{"N", 4096}}, 1,
   generated::silu_and_mul_N4096_bf16, "silu_and_mul/N4096_bf16",
   0, ""},
  {"silu_and_mul", "fp16", {{"N", 4096}}, 1,
   generated::silu_and_mul_N4096_fp16, "silu_and_mul/N4096_fp16",
   0, ""},
};
const int kKernelCount = 64;

const AttentionKernel kAttentionKernels[] = {
  {"gqa", "bf16", {{"D", 128}}, 1,
   generated::gqa_D128_bf16,
   generated::gqa_D128_bf16_workspace,
   "gqa/D128_bf16", ""},
  {"gqa", "fp16", {{"D", 128}}, 1,
   generated::gqa_D128_fp16,
   generated::gqa_D128_fp16_workspace,
   "gqa/D128_fp16", ""},
  {"gqa", "bf16", {{"D", 192}}, 1,
   generated::gqa_D192_bf16,
   generated::gqa_D192_bf16_workspace,
   "gqa/D192_bf16", ""},
  {"gqa", "fp16", {{"D", 192}}, 1,
   generated::gqa_D192_fp16,
   generated::gqa_D192_fp16_workspace,
   "gqa/D192_fp16", ""},
  {"gqa", "bf16", {{"D", 256}}, 1,
   generated::gqa_D256_bf16,
   generated::gqa_D256_bf16_workspace,
   "gqa/D256_bf16", ""},
  {"gqa", "fp16", {{"D", 256}}, 1,
   generated::gqa_D256_fp16,
   generated::gqa_D256_fp16_workspace,
   "gqa/D256_fp16", ""},
  {"gqa", "bf16", {{"D", 64}}, 1,
   generated::gqa_D64_bf16,
   generated::gqa_D64_bf16_workspace,
   "gqa/D64_bf16", ""},
  {"gqa", "fp16", {{"D", 64}}, 1,
   generated::gqa_D64_fp16,
   generated::gqa_D64_fp16_workspace,
   "gqa/D64_fp16", ""},
  {"gqa", "bf16", {{"D", 96}}, 1,
   generated::gqa_D96_bf16,
   generated::gqa_D96_bf16_workspace,
   "gqa/D96_bf16", ""},
  {"gqa", "fp16", {{"D", 96}}, 1,
   generated::gqa_D96_fp16,
   generated::gqa_D96_fp16_workspace,
   "gqa/D96_fp16", ""},
  {"gqa_full", "bf16", {{"D", 128}}, 1,
   generated::gqa_full_D128_bf16,
   generated::gqa_full_D128_bf16_workspace,
   "gqa_full/D128_bf16", ""},
  {"gqa_full", "fp16", {{"D", 128}}, 1,
   generated::gqa_full_D128_fp16,
   generated::gqa_full_D128_fp16_workspace,
   "gqa_full/D128_fp16", ""},
  {"gqa_full", "bf16", {{"D", 192}}, 1,
   generated::gqa_full_D192_bf16,
   generated::gqa_full_D192_bf16_workspace,
   "gqa_full/D192_bf16", ""},
  {"gqa_full", "fp16", {{"D", 192}}, 1,
   generated::gqa_full_D192_fp16,
   generated::gqa_full_D192_fp16_workspace,
   "gqa_full/D192_fp16", ""},
  {"gqa_full", "bf16", {{"D", 256}}, 1,
   generated::gqa_full_D256_bf16,
   generated::gqa_full_D256_bf16_workspace,
   "gqa_full/D256_bf16", ""},
  {"gqa_full", "fp16", {{"D", 256}}, 1,
   generated::gqa_full_D256_fp16,
   generated::gqa_full_D256_fp16_workspace,
   "gqa_full/D256_fp16", ""},
  {"gqa_full", "bf16", {{"D", 64}}, 1,
   generated::gqa_full_D64_bf16,
   generated::gqa_full_D64_bf16_workspace,
   "gqa_full/D64_bf16", ""},
  {"gqa_full", "fp16", {{"D", 64}}, 1,
   generated::gqa_full_D64_fp16,
   generated::gqa_full_D64_fp16_workspace,
   "gqa_full/D64_fp16", ""},
  {"gqa_full", "bf16", {{"D", 96}}, 1,
   generated::gqa_full_D96_bf16,
   generated::gqa_full_D96_bf16_workspace,
   "gqa_full/D96_bf16", ""},
  {"gqa_full", "fp16", {{"D", 96}}, 1,
   generated::gqa_full_D96_fp16,
   generated::gqa_full_D96_fp16_workspace,
   "gqa_full/D96_fp16", ""},
  {"mla_decode", "bf16", {{"C", 512}, {"P", 64}}, 2,
   generated::mla_decode_C512_P64_bf16,
   generated::mla_decode_C512_P64_bf16_workspace,
   "mla_decode/C512_P64_bf16", ""},
  {"mla_decode", "fp16", {{"C", 512}, {"P", 64}}, 2,
   generated::mla_decode_C512_P64_fp16,
   generated::mla_decode_C512_P64_fp16_workspace,
   "mla_decode/C512_P64_fp16", ""},
  {"qk_layer_norm_attention", "bf16", {{"D", 128}}, 1,
   generated::qk_layer_norm_attention_D128_bf16,
   generated::qk_layer_norm_attention_D128_bf16_workspace,
   "qk_layer_norm_attention/D128_bf16", "q_bias k_bias"},
  {"qk_layer_norm_attention", "fp16", {{"D", 128}}, 1,
   generated::qk_layer_norm_attention_D128_fp16,
   generated::qk_layer_norm_attention_D128_fp16_workspace,
   "qk_layer_norm_attention/D128_fp16", "q_bias k_bias"},
  {"qk_layer_norm_attention", "bf16", {{"D", 64}}, 1,
   generated::qk_layer_norm_attention_D64_bf16,
   generated::qk_layer_norm_attention_D64_bf16_workspace,
   "qk_layer_norm_attention/D64_bf16", "q_bias k_bias"},
  {"qk_layer_norm_attention", "fp16", {{"D", 64}}, 1,
   generated::qk_layer_norm_attention_D64_fp16,
   generated::qk_layer_norm_attention_D64_fp16_workspace,
   "qk_layer_norm_attention/D64_fp16", "q_bias k_bias"},
  {"qk_norm_attention", "bf16", {{"D", 128}}, 1,
   generated::qk_norm_attention_D128_bf16,
   generated::qk_norm_attention_D128_bf16_workspace,
   "qk_norm_attention/D128_bf16", ""},
  {"qk_norm_attention", "fp16", {{"D", 128}}, 1,
   generated::qk_norm_attention_D128_fp16,
   generated::qk_norm_attention_D128_fp16_workspace,
   "qk_norm_attention/D128_fp16", ""},
  {"qk_norm_attention", "bf16", {{"D", 256}}, 1,
   generated::qk_norm_attention_D256_bf16,
   generated::qk_norm_attention_D256_bf16_workspace,
   "qk_norm_attention/D256_bf16", ""},
  {"qk_norm_attention", "fp16", {{"D", 256}}, 1,
   generated::qk_norm_attention_D256_fp16,
   generated::qk_norm_attention_D256_fp16_workspace,
   "qk_norm_attention/D256_fp16", ""},
  {"qk_norm_attention", "bf16", {{"D", 64}}, 1,
   generated::qk_norm_attention_D64_bf16,
   generated::qk_norm_attention_D64_bf16_workspace,
   "qk_norm_attention/D64_bf16", ""},
  {"qk_norm_attention", "fp16", {{"D", 64}}, 1,
   generated::qk_norm_attention_D64_fp16,
   generated::qk_norm_attention_D64_fp16_workspace,
   "qk_norm_attention/D64_fp16", ""},
  {"sliding_window_attention", "bf16", {{"D", 128}}, 1,
   generated::sliding_window_attention_D128_bf16,
   generated::sliding_window_attention_D128_bf16_workspace,
   "sliding_window_attention/D128_bf16", ""},
  {"sliding_window_attention", "fp16", {{"D", 128}}, 1,
   generated::sliding_window_attention_D128_fp16,
   generated::sliding_window_attention_D128_fp16_workspace,
   "sliding_window_attention/D128_fp16", ""},
  {"sliding_window_attention", "bf16", {{"D", 192}}, 1,
   generated::sliding_window_attention_D192_bf16,
   generated::sliding_window_attention_D192_bf16_workspace,
   "sliding_window_attention/D192_bf16", ""},
  {"sliding_window_attention", "fp16", {{"D", 192}}, 1,
   generated::sliding_window_attention_D192_fp16,
   generated::sliding_window_attention_D192_fp16_workspace,
   "sliding_window_attention/D192_fp16", ""},
  {"sliding_window_attention", "bf16", {{"D", 256}}, 1,
   generated::sliding_window_attention_D256_bf16,
   generated::sliding_window_attention_D256_bf16_workspace,
   "sliding_window_attention/D256_bf16", ""},
  {"sliding_window_attention", "fp16", {{"D", 256}}, 1,
   generated::sliding_window_attention_D256_fp16,
   generated::sliding_window_attention_D256_fp16_workspace,
   "sliding_window_attention/D256_fp16", ""},
  {"sliding_window_attention", "bf16", {{"D", 64}}, 1,
   generated::sliding_window_attention_D64_bf16,
   generated::sliding_window_attention_D64_bf16_workspace,
   "sliding_window_attention/D64_bf16", ""},
  {"sliding_window_attention", "fp16", {{"D", 64}}, 1,
   generated::sliding_window_attention_D64_fp16,
   generated::sliding_window_attention_D64_fp16_workspace,
   "sliding_window_attention/D64_fp16", ""},
  {"sliding_window_attention", "bf16", {{"D", 96}}, 1,
   generated::sliding_window_attention_D96_bf16,
   generated::sliding_window_attention_D96_bf16_workspace,
   "sliding_window_attention/D96_bf16", ""},
  {"sliding_window_attention", "fp16", {{"D", 96}}, 1,
   generated::sliding_window_attention_D96_fp16,
   generated::sliding_window_attention_D96_fp16_workspace,
   "sliding_window_attention/D96_fp16", ""},
};
const int kAttentionKernelCount = 42;

const char* const kArch = "sm_90a";

}  // namespace mirage
