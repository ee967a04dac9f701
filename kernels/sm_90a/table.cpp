// mirage-kernels generate RECIPE --arch sm_90a
//
// Which kernel serves which recipe, element type and static extents. A row names recipe, file,
// element type, most tokens (0: any number; rows of attention have none), inputs that a call may
// leave out, and static extents. SPACE: the kernel needs a workspace.

#define KERNELS(PLAIN, SPACE) \
  PLAIN(gated_mlp, K2048_N8192_bf16, bf16, 64, "", {"K", 2048}, {"N", 8192}) \
  PLAIN(gated_mlp, K2048_N8192_fp16, fp16, 64, "", {"K", 2048}, {"N", 8192}) \
  PLAIN(gated_mlp, K3072_N8192_bf16, bf16, 64, "", {"K", 3072}, {"N", 8192}) \
  PLAIN(gated_mlp, K3072_N8192_fp16, fp16, 64, "", {"K", 3072}, {"N", 8192}) \
  PLAIN(gated_mlp, K3584_N18944_bf16, bf16, 64, "", {"K", 3584}, {"N", 18944}) \
  PLAIN(gated_mlp, K3584_N18944_fp16, fp16, 64, "", {"K", 3584}, {"N", 18944}) \
  PLAIN(gated_mlp, K4096_N12288_bf16, bf16, 64, "", {"K", 4096}, {"N", 12288}) \
  PLAIN(gated_mlp, K4096_N12288_fp16, fp16, 64, "", {"K", 4096}, {"N", 12288}) \
  PLAIN(gated_mlp, K4096_N14336_bf16, bf16, 128, "", {"K", 4096}, {"N", 14336}) \
  PLAIN(gated_mlp, K4096_N14336_fp16, fp16, 128, "", {"K", 4096}, {"N", 14336}) \
  PLAIN(gated_mlp, K4096_N1792_bf16, bf16, 128, "", {"K", 4096}, {"N", 1792}) \
  PLAIN(gated_mlp, K4096_N1792_fp16, fp16, 128, "", {"K", 4096}, {"N", 1792}) \
  PLAIN(gated_mlp, K4096_N3584_bf16, bf16, 64, "", {"K", 4096}, {"N", 3584}) \
  PLAIN(gated_mlp, K4096_N3584_fp16, fp16, 64, "", {"K", 4096}, {"N", 3584}) \
  PLAIN(gated_mlp, K4096_N4096_bf16, bf16, 128, "", {"K", 4096}, {"N", 4096}) \
  PLAIN(gated_mlp, K4096_N4096_fp16, fp16, 128, "", {"K", 4096}, {"N", 4096}) \
  PLAIN(gated_mlp, K5120_N25600_bf16, bf16, 64, "", {"K", 5120}, {"N", 25600}) \
  PLAIN(gated_mlp, K5120_N25600_fp16, fp16, 64, "", {"K", 5120}, {"N", 25600}) \
  PLAIN(gated_mlp, K8192_N28672_bf16, bf16, 64, "", {"K", 8192}, {"N", 28672}) \
  PLAIN(gated_mlp, K8192_N28672_fp16, fp16, 64, "", {"K", 8192}, {"N", 28672}) \
  PLAIN(gated_mlp, K8192_N3584_bf16, bf16, 64, "", {"K", 8192}, {"N", 3584}) \
  PLAIN(gated_mlp, K8192_N3584_fp16, fp16, 64, "", {"K", 8192}, {"N", 3584}) \
  PLAIN(gated_mlp, K8192_N7168_bf16, bf16, 64, "", {"K", 8192}, {"N", 7168}) \
  PLAIN(gated_mlp, K8192_N7168_fp16, fp16, 64, "", {"K", 8192}, {"N", 7168}) \
  PLAIN(geglu_mlp, K3584_N14336_bf16, bf16, 128, "", {"K", 3584}, {"N", 14336}) \
  PLAIN(geglu_mlp, K3584_N14336_fp16, fp16, 128, "", {"K", 3584}, {"N", 14336}) \
  PLAIN(geglu_mlp, K3840_N15360_bf16, bf16, 64, "", {"K", 3840}, {"N", 15360}) \
  PLAIN(geglu_mlp, K3840_N15360_fp16, fp16, 64, "", {"K", 3840}, {"N", 15360}) \
  PLAIN(gelu_tanh_and_mul, N14336_bf16, bf16, 0, "", {"N", 14336}) \
  PLAIN(gelu_tanh_and_mul, N14336_fp16, fp16, 0, "", {"N", 14336}) \
  PLAIN(gelu_tanh_and_mul, N15360_bf16, bf16, 0, "", {"N", 15360}) \
  PLAIN(gelu_tanh_and_mul, N15360_fp16, fp16, 0, "", {"N", 15360}) \
  PLAIN(layer_norm, K4096_bf16, bf16, 0, "norm_bias", {"K", 4096}) \
  PLAIN(layer_norm, K4096_fp16, fp16, 0, "norm_bias", {"K", 4096}) \
  SPACE(layer_norm_linear, K4096_N4096_bf16, bf16, 64, "", {"K", 4096}, {"N", 4096}) \
  SPACE(layer_norm_linear, K4096_N4096_fp16, fp16, 64, "", {"K", 4096}, {"N", 4096}) \
  SPACE(layer_norm_linear, K4096_N6144_bf16, bf16, 64, "", {"K", 4096}, {"N", 6144}) \
  SPACE(layer_norm_linear, K4096_N6144_fp16, fp16, 64, "", {"K", 4096}, {"N", 6144}) \
  SPACE(layer_norm_linear_full, K4096_N4096_bf16, bf16, 64, "norm_bias bias", \
      {"K", 4096}, {"N", 4096}) \
  SPACE(layer_norm_linear_full, K4096_N4096_fp16, fp16, 64, "norm_bias bias", \
      {"K", 4096}, {"N", 4096}) \
  SPACE(layer_norm_linear_full, K4096_N6144_bf16, bf16, 64, "norm_bias bias", \
      {"K", 4096}, {"N", 6144}) \
  SPACE(layer_norm_linear_full, K4096_N6144_fp16, fp16, 64, "norm_bias bias", \
      {"K", 4096}, {"N", 6144}) \
  PLAIN(layer_norm_residual, K1600_bf16, bf16, 0, "norm_bias", {"K", 1600}) \
  PLAIN(layer_norm_residual, K1600_fp16, fp16, 0, "norm_bias", {"K", 1600}) \
  PLAIN(layer_norm_residual, K4096_bf16, bf16, 0, "norm_bias", {"K", 4096}) \
  PLAIN(layer_norm_residual, K4096_fp16, fp16, 0, "norm_bias", {"K", 4096}) \
  PLAIN(linear, K1024_N8192_bf16, bf16, 128, "bias residual", {"K", 1024}, {"N", 8192}) \
  PLAIN(linear, K1024_N8192_fp16, fp16, 128, "bias residual", {"K", 1024}, {"N", 8192}) \
  PLAIN(linear, K12288_N4096_bf16, bf16, 64, "bias residual", {"K", 12288}, {"N", 4096}) \
  PLAIN(linear, K12288_N4096_fp16, fp16, 64, "bias residual", {"K", 12288}, {"N", 4096}) \
  PLAIN(linear, K14336_N3584_bf16, bf16, 64, "bias residual", {"K", 14336}, {"N", 3584}) \
  PLAIN(linear, K14336_N3584_fp16, fp16, 64, "bias residual", {"K", 14336}, {"N", 3584}) \
  PLAIN(linear, K14336_N4096_bf16, bf16, 64, "bias residual", {"K", 14336}, {"N", 4096}) \
  PLAIN(linear, K14336_N4096_fp16, fp16, 64, "bias residual", {"K", 14336}, {"N", 4096}) \
  PLAIN(linear, K15360_N3840_bf16, bf16, 64, "bias residual", {"K", 15360}, {"N", 3840}) \
  PLAIN(linear, K15360_N3840_fp16, fp16, 64, "bias residual", {"K", 15360}, {"N", 3840}) \
  PLAIN(linear, K18944_N3584_bf16, bf16, 64, "bias residual", {"K", 18944}, {"N", 3584}) \
  PLAIN(linear, K18944_N3584_fp16, fp16, 64, "bias residual", {"K", 18944}, {"N", 3584}) \
  PLAIN(linear, K2048_N2048_bf16, bf16, 128, "bias residual", {"K", 2048}, {"N", 2048}) \
  PLAIN(linear, K2048_N2048_fp16, fp16, 128, "bias residual", {"K", 2048}, {"N", 2048}) \
  PLAIN(linear, K2048_N8192_bf16, bf16, 128, "bias residual", {"K", 2048}, {"N", 8192}) \
  PLAIN(linear, K2048_N8192_fp16, fp16, 128, "bias residual", {"K", 2048}, {"N", 8192}) \
  PLAIN(linear, K25600_N5120_bf16, bf16, 64, "bias residual", {"K", 25600}, {"N", 5120}) \
  PLAIN(linear, K25600_N5120_fp16, fp16, 64, "bias residual", {"K", 25600}, {"N", 5120}) \
  PLAIN(linear, K28672_N8192_bf16, bf16, 64, "bias residual", {"K", 28672}, {"N", 8192}) \
  PLAIN(linear, K28672_N8192_fp16, fp16, 64, "bias residual", {"K", 28672}, {"N", 8192}) \
  PLAIN(linear, K3072_N3072_bf16, bf16, 128, "bias residual", {"K", 3072}, {"N", 3072}) \
  PLAIN(linear, K3072_N3072_fp16, fp16, 128, "bias residual", {"K", 3072}, {"N", 3072}) \
  PLAIN(linear, K3584_N3584_bf16, bf16, 128, "bias residual", {"K", 3584}, {"N", 3584}) \
  PLAIN(linear, K3584_N3584_fp16, fp16, 128, "bias residual", {"K", 3584}, {"N", 3584}) \
  PLAIN(linear, K3584_N8192_bf16, bf16, 128, "bias residual", {"K", 3584}, {"N", 8192}) \
  PLAIN(linear, K3584_N8192_fp16, fp16, 128, "bias residual", {"K", 3584}, {"N", 8192}) \
  PLAIN(linear, K4096_N3584_bf16, bf16, 128, "bias residual", {"K", 4096}, {"N", 3584}) \
  PLAIN(linear, K4096_N3584_fp16, fp16, 128, "bias residual", {"K", 4096}, {"N", 3584}) \
  PLAIN(linear, K4096_N3840_bf16, bf16, 128, "bias residual", {"K", 4096}, {"N", 3840}) \
  PLAIN(linear, K4096_N3840_fp16, fp16, 128, "bias residual", {"K", 4096}, {"N", 3840}) \
  PLAIN(linear, K4096_N4096_bf16, bf16, 128, "bias residual", {"K", 4096}, {"N", 4096}) \
  PLAIN(linear, K4096_N4096_fp16, fp16, 128, "bias residual", {"K", 4096}, {"N", 4096}) \
  PLAIN(linear, K7168_N8192_bf16, bf16, 128, "bias residual", {"K", 7168}, {"N", 8192}) \
  PLAIN(linear, K7168_N8192_fp16, fp16, 128, "bias residual", {"K", 7168}, {"N", 8192}) \
  PLAIN(linear, K8192_N2048_bf16, bf16, 128, "bias residual", {"K", 8192}, {"N", 2048}) \
  PLAIN(linear, K8192_N2048_fp16, fp16, 128, "bias residual", {"K", 8192}, {"N", 2048}) \
  PLAIN(linear, K8192_N3072_bf16, bf16, 128, "bias residual", {"K", 8192}, {"N", 3072}) \
  PLAIN(linear, K8192_N3072_fp16, fp16, 128, "bias residual", {"K", 8192}, {"N", 3072}) \
  PLAIN(linear, K8192_N5120_bf16, bf16, 64, "bias residual", {"K", 8192}, {"N", 5120}) \
  PLAIN(linear, K8192_N5120_fp16, fp16, 64, "bias residual", {"K", 8192}, {"N", 5120}) \
  PLAIN(linear, K8192_N8192_bf16, bf16, 64, "bias residual", {"K", 8192}, {"N", 8192}) \
  PLAIN(linear, K8192_N8192_fp16, fp16, 64, "bias residual", {"K", 8192}, {"N", 8192}) \
  PLAIN(lora_linear, K256_N4096_R16_bf16, bf16, 128, "", {"K", 256}, {"N", 4096}, {"R", 16}) \
  PLAIN(lora_linear, K256_N4096_R16_fp16, fp16, 128, "", {"K", 256}, {"N", 4096}, {"R", 16}) \
  SPACE(lora_linear, K4096_N4096_R16_bf16, bf16, 128, "", {"K", 4096}, {"N", 4096}, {"R", 16}) \
  SPACE(lora_linear, K4096_N4096_R16_fp16, fp16, 128, "", {"K", 4096}, {"N", 4096}, {"R", 16}) \
  SPACE(lora_linear, K4096_N4096_R64_bf16, bf16, 128, "", {"K", 4096}, {"N", 4096}, {"R", 64}) \
  SPACE(lora_linear, K4096_N4096_R64_fp16, fp16, 128, "", {"K", 4096}, {"N", 4096}, {"R", 64}) \
  SPACE(lora_linear_batched, K4096_N4096_R16_bf16, bf16, 128, "bias", \
      {"K", 4096}, {"N", 4096}, {"R", 16}) \
  SPACE(lora_linear_batched, K4096_N4096_R16_fp16, fp16, 128, "bias", \
      {"K", 4096}, {"N", 4096}, {"R", 16}) \
  SPACE(lora_linear_batched, K4096_N4096_R64_bf16, bf16, 128, "bias", \
      {"K", 4096}, {"N", 4096}, {"R", 64}) \
  SPACE(lora_linear_batched, K4096_N4096_R64_fp16, fp16, 128, "bias", \
      {"K", 4096}, {"N", 4096}, {"R", 64}) \
  SPACE(lora_linear_full, K4096_N4096_R16_bf16, bf16, 128, "bias", \
      {"K", 4096}, {"N", 4096}, {"R", 16}) \
  SPACE(lora_linear_full, K4096_N4096_R16_fp16, fp16, 128, "bias", \
      {"K", 4096}, {"N", 4096}, {"R", 16}) \
  SPACE(lora_linear_full, K4096_N4096_R64_bf16, bf16, 128, "bias", \
      {"K", 4096}, {"N", 4096}, {"R", 64}) \
  SPACE(lora_linear_full, K4096_N4096_R64_fp16, fp16, 128, "bias", \
      {"K", 4096}, {"N", 4096}, {"R", 64}) \
  PLAIN(ntrans, K4096_bf16, bf16, 0, "", {"K", 4096}) \
  PLAIN(ntrans, K4096_fp16, fp16, 0, "", {"K", 4096}) \
  PLAIN(rms_norm, K2048_bf16, bf16, 0, "weight_offset", {"K", 2048}) \
  PLAIN(rms_norm, K2048_fp16, fp16, 0, "weight_offset", {"K", 2048}) \
  PLAIN(rms_norm, K3072_bf16, bf16, 0, "weight_offset", {"K", 3072}) \
  PLAIN(rms_norm, K3072_fp16, fp16, 0, "weight_offset", {"K", 3072}) \
  PLAIN(rms_norm, K3584_bf16, bf16, 0, "weight_offset", {"K", 3584}) \
  PLAIN(rms_norm, K3584_fp16, fp16, 0, "weight_offset", {"K", 3584}) \
  PLAIN(rms_norm, K3840_bf16, bf16, 0, "weight_offset", {"K", 3840}) \
  PLAIN(rms_norm, K3840_fp16, fp16, 0, "weight_offset", {"K", 3840}) \
  PLAIN(rms_norm, K4096_bf16, bf16, 0, "weight_offset", {"K", 4096}) \
  PLAIN(rms_norm, K4096_fp16, fp16, 0, "weight_offset", {"K", 4096}) \
  PLAIN(rms_norm, K5120_bf16, bf16, 0, "weight_offset", {"K", 5120}) \
  PLAIN(rms_norm, K5120_fp16, fp16, 0, "weight_offset", {"K", 5120}) \
  PLAIN(rms_norm, K8192_bf16, bf16, 0, "weight_offset", {"K", 8192}) \
  PLAIN(rms_norm, K8192_fp16, fp16, 0, "weight_offset", {"K", 8192}) \
  PLAIN(rms_norm_add, K3584_bf16, bf16, 0, "weight_offset", {"K", 3584}) \
  PLAIN(rms_norm_add, K3584_fp16, fp16, 0, "weight_offset", {"K", 3584}) \
  PLAIN(rms_norm_add, K3840_bf16, bf16, 0, "weight_offset", {"K", 3840}) \
  PLAIN(rms_norm_add, K3840_fp16, fp16, 0, "weight_offset", {"K", 3840}) \
  PLAIN(rms_norm_gated_mlp, K2048_N8192_bf16, bf16, 128, "", {"K", 2048}, {"N", 8192}) \
  PLAIN(rms_norm_gated_mlp, K2048_N8192_fp16, fp16, 64, "", {"K", 2048}, {"N", 8192}) \
  PLAIN(rms_norm_gated_mlp, K3072_N8192_bf16, bf16, 128, "", {"K", 3072}, {"N", 8192}) \
  PLAIN(rms_norm_gated_mlp, K3072_N8192_fp16, fp16, 64, "", {"K", 3072}, {"N", 8192}) \
  PLAIN(rms_norm_gated_mlp, K3584_N18944_bf16, bf16, 128, "", {"K", 3584}, {"N", 18944}) \
  PLAIN(rms_norm_gated_mlp, K3584_N18944_fp16, fp16, 64, "", {"K", 3584}, {"N", 18944}) \
  PLAIN(rms_norm_gated_mlp, K4096_N12288_bf16, bf16, 128, "", {"K", 4096}, {"N", 12288}) \
  PLAIN(rms_norm_gated_mlp, K4096_N12288_fp16, fp16, 64, "", {"K", 4096}, {"N", 12288}) \
  PLAIN(rms_norm_gated_mlp, K4096_N14336_bf16, bf16, 128, "", {"K", 4096}, {"N", 14336}) \
  PLAIN(rms_norm_gated_mlp, K4096_N14336_fp16, fp16, 64, "", {"K", 4096}, {"N", 14336}) \
  PLAIN(rms_norm_gated_mlp, K4096_N1792_bf16, bf16, 128, "", {"K", 4096}, {"N", 1792}) \
  PLAIN(rms_norm_gated_mlp, K4096_N1792_fp16, fp16, 64, "", {"K", 4096}, {"N", 1792}) \
  PLAIN(rms_norm_gated_mlp, K4096_N3584_bf16, bf16, 128, "", {"K", 4096}, {"N", 3584}) \
  PLAIN(rms_norm_gated_mlp, K4096_N3584_fp16, fp16, 64, "", {"K", 4096}, {"N", 3584}) \
  PLAIN(rms_norm_gated_mlp, K5120_N25600_bf16, bf16, 64, "", {"K", 5120}, {"N", 25600}) \
  PLAIN(rms_norm_gated_mlp, K5120_N25600_fp16, fp16, 64, "", {"K", 5120}, {"N", 25600}) \
  PLAIN(rms_norm_gated_mlp, K8192_N28672_bf16, bf16, 64, "", {"K", 8192}, {"N", 28672}) \
  PLAIN(rms_norm_gated_mlp, K8192_N28672_fp16, fp16, 64, "", {"K", 8192}, {"N", 28672}) \
  PLAIN(rms_norm_gated_mlp, K8192_N3584_bf16, bf16, 64, "", {"K", 8192}, {"N", 3584}) \
  PLAIN(rms_norm_gated_mlp, K8192_N3584_fp16, fp16, 64, "", {"K", 8192}, {"N", 3584}) \
  PLAIN(rms_norm_gated_mlp, K8192_N7168_bf16, bf16, 64, "", {"K", 8192}, {"N", 7168}) \
  PLAIN(rms_norm_gated_mlp, K8192_N7168_fp16, fp16, 64, "", {"K", 8192}, {"N", 7168}) \
  PLAIN(rms_norm_gated_mlp_residual, K4096_N14336_bf16, bf16, 16, "", {"K", 4096}, {"N", 14336}) \
  PLAIN(rms_norm_gated_mlp_residual, K4096_N14336_fp16, fp16, 16, "", {"K", 4096}, {"N", 14336}) \
  PLAIN(rms_norm_geglu_mlp, K3584_N14336_bf16, bf16, 128, "", {"K", 3584}, {"N", 14336}) \
  PLAIN(rms_norm_geglu_mlp, K3584_N14336_fp16, fp16, 64, "", {"K", 3584}, {"N", 14336}) \
  PLAIN(rms_norm_geglu_mlp, K3840_N15360_bf16, bf16, 64, "", {"K", 3840}, {"N", 15360}) \
  PLAIN(rms_norm_geglu_mlp, K3840_N15360_fp16, fp16, 64, "", {"K", 3840}, {"N", 15360}) \
  PLAIN(rms_norm_linear, K2048_N128256_bf16, bf16, 64, "", {"K", 2048}, {"N", 128256}) \
  PLAIN(rms_norm_linear, K2048_N128256_fp16, fp16, 64, "", {"K", 2048}, {"N", 128256}) \
  PLAIN(rms_norm_linear, K2048_N3072_bf16, bf16, 64, "", {"K", 2048}, {"N", 3072}) \
  PLAIN(rms_norm_linear, K2048_N3072_fp16, fp16, 64, "", {"K", 2048}, {"N", 3072}) \
  PLAIN(rms_norm_linear, K3072_N128256_bf16, bf16, 64, "", {"K", 3072}, {"N", 128256}) \
  PLAIN(rms_norm_linear, K3072_N128256_fp16, fp16, 64, "", {"K", 3072}, {"N", 128256}) \
  PLAIN(rms_norm_linear, K3072_N5120_bf16, bf16, 64, "", {"K", 3072}, {"N", 5120}) \
  PLAIN(rms_norm_linear, K3072_N5120_fp16, fp16, 64, "", {"K", 3072}, {"N", 5120}) \
  PLAIN(rms_norm_linear, K3584_N152064_bf16, bf16, 64, "", {"K", 3584}, {"N", 152064}) \
  PLAIN(rms_norm_linear, K3584_N152064_fp16, fp16, 64, "", {"K", 3584}, {"N", 152064}) \
  PLAIN(rms_norm_linear, K4096_N128256_bf16, bf16, 64, "", {"K", 4096}, {"N", 128256}) \
  PLAIN(rms_norm_linear, K4096_N128256_fp16, fp16, 64, "", {"K", 4096}, {"N", 128256}) \
  PLAIN(rms_norm_linear, K4096_N151936_bf16, bf16, 64, "", {"K", 4096}, {"N", 151936}) \
  PLAIN(rms_norm_linear, K4096_N151936_fp16, fp16, 64, "", {"K", 4096}, {"N", 151936}) \
  PLAIN(rms_norm_linear, K4096_N1536_bf16, bf16, 128, "", {"K", 4096}, {"N", 1536}) \
  PLAIN(rms_norm_linear, K4096_N1536_fp16, fp16, 64, "", {"K", 4096}, {"N", 1536}) \
  PLAIN(rms_norm_linear, K4096_N16032_bf16, bf16, 64, "", {"K", 4096}, {"N", 16032}) \
  PLAIN(rms_norm_linear, K4096_N16032_fp16, fp16, 64, "", {"K", 4096}, {"N", 16032}) \
  PLAIN(rms_norm_linear, K4096_N32000_bf16, bf16, 64, "", {"K", 4096}, {"N", 32000}) \
  PLAIN(rms_norm_linear, K4096_N32000_fp16, fp16, 64, "", {"K", 4096}, {"N", 32000}) \
  PLAIN(rms_norm_linear, K4096_N32064_bf16, bf16, 64, "", {"K", 4096}, {"N", 32064}) \
  PLAIN(rms_norm_linear, K4096_N32064_fp16, fp16, 64, "", {"K", 4096}, {"N", 32064}) \
  PLAIN(rms_norm_linear, K4096_N32768_bf16, bf16, 64, "", {"K", 4096}, {"N", 32768}) \
  PLAIN(rms_norm_linear, K4096_N32768_fp16, fp16, 64, "", {"K", 4096}, {"N", 32768}) \
  PLAIN(rms_norm_linear, K4096_N4096_bf16, bf16, 128, "", {"K", 4096}, {"N", 4096}) \
  PLAIN(rms_norm_linear, K4096_N4096_fp16, fp16, 64, "", {"K", 4096}, {"N", 4096}) \
  PLAIN(rms_norm_linear, K4096_N6144_bf16, bf16, 64, "", {"K", 4096}, {"N", 6144}) \
  PLAIN(rms_norm_linear, K4096_N6144_fp16, fp16, 64, "", {"K", 4096}, {"N", 6144}) \
  PLAIN(rms_norm_linear, K4096_N768_bf16, bf16, 128, "", {"K", 4096}, {"N", 768}) \
  PLAIN(rms_norm_linear, K4096_N768_fp16, fp16, 64, "", {"K", 4096}, {"N", 768}) \
  PLAIN(rms_norm_linear, K5120_N10240_bf16, bf16, 64, "", {"K", 5120}, {"N", 10240}) \
  PLAIN(rms_norm_linear, K5120_N10240_fp16, fp16, 64, "", {"K", 5120}, {"N", 10240}) \
  PLAIN(rms_norm_linear, K5120_N151936_bf16, bf16, 64, "", {"K", 5120}, {"N", 151936}) \
  PLAIN(rms_norm_linear, K5120_N151936_fp16, fp16, 64, "", {"K", 5120}, {"N", 151936}) \
  PLAIN(rms_norm_linear, K8192_N10240_bf16, bf16, 64, "", {"K", 8192}, {"N", 10240}) \
  PLAIN(rms_norm_linear, K8192_N10240_fp16, fp16, 64, "", {"K", 8192}, {"N", 10240}) \
  PLAIN(rms_norm_linear, K8192_N1280_bf16, bf16, 64, "", {"K", 8192}, {"N", 1280}) \
  PLAIN(rms_norm_linear, K8192_N1280_fp16, fp16, 64, "", {"K", 8192}, {"N", 1280}) \
  PLAIN(rms_norm_linear, K8192_N128256_bf16, bf16, 64, "", {"K", 8192}, {"N", 128256}) \
  PLAIN(rms_norm_linear, K8192_N128256_fp16, fp16, 64, "", {"K", 8192}, {"N", 128256}) \
  PLAIN(rms_norm_linear, K8192_N16032_bf16, bf16, 64, "", {"K", 8192}, {"N", 16032}) \
  PLAIN(rms_norm_linear, K8192_N16032_fp16, fp16, 64, "", {"K", 8192}, {"N", 16032}) \
  PLAIN(rms_norm_linear, K8192_N2560_bf16, bf16, 128, "", {"K", 8192}, {"N", 2560}) \
  PLAIN(rms_norm_linear, K8192_N2560_fp16, fp16, 64, "", {"K", 8192}, {"N", 2560}) \
  PLAIN(rms_norm_linear, K8192_N32064_bf16, bf16, 64, "", {"K", 8192}, {"N", 32064}) \
  PLAIN(rms_norm_linear, K8192_N32064_fp16, fp16, 64, "", {"K", 8192}, {"N", 32064}) \
  PLAIN(rms_norm_linear_full, K3584_N256000_bf16, bf16, 64, "bias weight_offset", \
      {"K", 3584}, {"N", 256000}) \
  PLAIN(rms_norm_linear_full, K3584_N256000_fp16, fp16, 64, "bias weight_offset", \
      {"K", 3584}, {"N", 256000}) \
  PLAIN(rms_norm_linear_full, K3584_N4608_bf16, bf16, 64, "bias weight_offset", \
      {"K", 3584}, {"N", 4608}) \
  PLAIN(rms_norm_linear_full, K3584_N4608_fp16, fp16, 32, "bias weight_offset", \
      {"K", 3584}, {"N", 4608}) \
  PLAIN(rms_norm_linear_full, K3584_N8192_bf16, bf16, 64, "bias weight_offset", \
      {"K", 3584}, {"N", 8192}) \
  PLAIN(rms_norm_linear_full, K3584_N8192_fp16, fp16, 64, "bias weight_offset", \
      {"K", 3584}, {"N", 8192}) \
  PLAIN(rms_norm_linear_full, K3840_N262208_bf16, bf16, 64, "bias weight_offset", \
      {"K", 3840}, {"N", 262208}) \
  PLAIN(rms_norm_linear_full, K3840_N262208_fp16, fp16, 64, "bias weight_offset", \
      {"K", 3840}, {"N", 262208}) \
  PLAIN(rms_norm_linear_full, K3840_N8192_bf16, bf16, 64, "bias weight_offset", \
      {"K", 3840}, {"N", 8192}) \
  PLAIN(rms_norm_linear_full, K3840_N8192_fp16, fp16, 64, "bias weight_offset", \
      {"K", 3840}, {"N", 8192}) \
  PLAIN(rms_norm_linear_full, K4096_N6144_bf16, bf16, 64, "bias weight_offset", \
      {"K", 4096}, {"N", 6144}) \
  PLAIN(rms_norm_linear_full, K4096_N6144_fp16, fp16, 64, "bias weight_offset", \
      {"K", 4096}, {"N", 6144}) \
  PLAIN(rms_norm_linear_residual, K3584_N4608_bf16, bf16, 16, "bias weight_offset", \
      {"K", 3584}, {"N", 4608}) \
  PLAIN(rms_norm_linear_residual, K3584_N4608_fp16, fp16, 16, "bias weight_offset", \
      {"K", 3584}, {"N", 4608}) \
  PLAIN(rms_norm_linear_residual, K4096_N6144_bf16, bf16, 16, "bias weight_offset", \
      {"K", 4096}, {"N", 6144}) \
  PLAIN(rms_norm_linear_residual, K4096_N6144_fp16, fp16, 16, "bias weight_offset", \
      {"K", 4096}, {"N", 6144}) \
  PLAIN(rms_norm_residual, K3584_bf16, bf16, 0, "weight_offset", {"K", 3584}) \
  PLAIN(rms_norm_residual, K3584_fp16, fp16, 0, "weight_offset", {"K", 3584}) \
  PLAIN(rms_norm_residual, K4096_bf16, bf16, 0, "weight_offset", {"K", 4096}) \
  PLAIN(rms_norm_residual, K4096_fp16, fp16, 0, "weight_offset", {"K", 4096}) \
  PLAIN(rms_norm_residual, K8192_bf16, bf16, 0, "weight_offset", {"K", 8192}) \
  PLAIN(rms_norm_residual, K8192_fp16, fp16, 0, "weight_offset", {"K", 8192}) \
  PLAIN(silu_and_mul, N12288_bf16, bf16, 0, "", {"N", 12288}) \
  PLAIN(silu_and_mul, N12288_fp16, fp16, 0, "", {"N", 12288}) \
  PLAIN(silu_and_mul, N14336_bf16, bf16, 0, "", {"N", 14336}) \
  PLAIN(silu_and_mul, N14336_fp16, fp16, 0, "", {"N", 14336}) \
  PLAIN(silu_and_mul, N1792_bf16, bf16, 0, "", {"N", 1792}) \
  PLAIN(silu_and_mul, N1792_fp16, fp16, 0, "", {"N", 1792}) \
  PLAIN(silu_and_mul, N18944_bf16, bf16, 0, "", {"N", 18944}) \
  PLAIN(silu_and_mul, N18944_fp16, fp16, 0, "", {"N", 18944}) \
  PLAIN(silu_and_mul, N25600_bf16, bf16, 0, "", {"N", 25600}) \
  PLAIN(silu_and_mul, N25600_fp16, fp16, 0, "", {"N", 25600}) \
  PLAIN(silu_and_mul, N28672_bf16, bf16, 0, "", {"N", 28672}) \
  PLAIN(silu_and_mul, N28672_fp16, fp16, 0, "", {"N", 28672}) \
  PLAIN(silu_and_mul, N3584_bf16, bf16, 0, "", {"N", 3584}) \
  PLAIN(silu_and_mul, N3584_fp16, fp16, 0, "", {"N", 3584}) \
  PLAIN(silu_and_mul, N4096_bf16, bf16, 0, "", {"N", 4096}) \
  PLAIN(silu_and_mul, N4096_fp16, fp16, 0, "", {"N", 4096}) \
  PLAIN(silu_and_mul, N7168_bf16, bf16, 0, "", {"N", 7168}) \
  PLAIN(silu_and_mul, N7168_fp16, fp16, 0, "", {"N", 7168}) \
  PLAIN(silu_and_mul, N8192_bf16, bf16, 0, "", {"N", 8192}) \
  PLAIN(silu_and_mul, N8192_fp16, fp16, 0, "", {"N", 8192})

#define ATTENTION_KERNELS(ATTENTION) \
  ATTENTION(gqa, D128_bf16, bf16, "", {"D", 128}) \
  ATTENTION(gqa, D128_fp16, fp16, "", {"D", 128}) \
  ATTENTION(gqa, D192_bf16, bf16, "", {"D", 192}) \
  ATTENTION(gqa, D192_fp16, fp16, "", {"D", 192}) \
  ATTENTION(gqa, D256_bf16, bf16, "", {"D", 256}) \
  ATTENTION(gqa, D256_fp16, fp16, "", {"D", 256}) \
  ATTENTION(gqa, D64_bf16, bf16, "", {"D", 64}) \
  ATTENTION(gqa, D64_fp16, fp16, "", {"D", 64}) \
  ATTENTION(gqa, D96_bf16, bf16, "", {"D", 96}) \
  ATTENTION(gqa, D96_fp16, fp16, "", {"D", 96}) \
  ATTENTION(gqa_full, D128_bf16, bf16, "", {"D", 128}) \
  ATTENTION(gqa_full, D128_fp16, fp16, "", {"D", 128}) \
  ATTENTION(gqa_full, D192_bf16, bf16, "", {"D", 192}) \
  ATTENTION(gqa_full, D192_fp16, fp16, "", {"D", 192}) \
  ATTENTION(gqa_full, D256_bf16, bf16, "", {"D", 256}) \
  ATTENTION(gqa_full, D256_fp16, fp16, "", {"D", 256}) \
  ATTENTION(gqa_full, D64_bf16, bf16, "", {"D", 64}) \
  ATTENTION(gqa_full, D64_fp16, fp16, "", {"D", 64}) \
  ATTENTION(gqa_full, D96_bf16, bf16, "", {"D", 96}) \
  ATTENTION(gqa_full, D96_fp16, fp16, "", {"D", 96}) \
  ATTENTION(mla_decode, C512_P64_bf16, bf16, "", {"C", 512}, {"P", 64}) \
  ATTENTION(mla_decode, C512_P64_fp16, fp16, "", {"C", 512}, {"P", 64}) \
  ATTENTION(qk_layer_norm_attention, D128_bf16, bf16, "q_bias k_bias", {"D", 128}) \
  ATTENTION(qk_layer_norm_attention, D128_fp16, fp16, "q_bias k_bias", {"D", 128}) \
  ATTENTION(qk_layer_norm_attention, D64_bf16, bf16, "q_bias k_bias", {"D", 64}) \
  ATTENTION(qk_layer_norm_attention, D64_fp16, fp16, "q_bias k_bias", {"D", 64}) \
  ATTENTION(qk_norm_attention, D128_bf16, bf16, "", {"D", 128}) \
  ATTENTION(qk_norm_attention, D128_fp16, fp16, "", {"D", 128}) \
  ATTENTION(qk_norm_attention, D256_bf16, bf16, "", {"D", 256}) \
  ATTENTION(qk_norm_attention, D256_fp16, fp16, "", {"D", 256}) \
  ATTENTION(qk_norm_attention, D64_bf16, bf16, "", {"D", 64}) \
  ATTENTION(qk_norm_attention, D64_fp16, fp16, "", {"D", 64}) \
  ATTENTION(sliding_window_attention, D128_bf16, bf16, "", {"D", 128}) \
  ATTENTION(sliding_window_attention, D128_fp16, fp16, "", {"D", 128}) \
  ATTENTION(sliding_window_attention, D192_bf16, bf16, "", {"D", 192}) \
  ATTENTION(sliding_window_attention, D192_fp16, fp16, "", {"D", 192}) \
  ATTENTION(sliding_window_attention, D256_bf16, bf16, "", {"D", 256}) \
  ATTENTION(sliding_window_attention, D256_fp16, fp16, "", {"D", 256}) \
  ATTENTION(sliding_window_attention, D64_bf16, bf16, "", {"D", 64}) \
  ATTENTION(sliding_window_attention, D64_fp16, fp16, "", {"D", 64}) \
  ATTENTION(sliding_window_attention, D96_bf16, bf16, "", {"D", 96}) \
  ATTENTION(sliding_window_attention, D96_fp16, fp16, "", {"D", 96})

#define ARCH "sm_90a"

#include "table.h"
