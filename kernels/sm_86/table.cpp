// mirage-kernels generate RECIPE --arch sm_86
//
// Which kernel serves which recipe, element type and static extents. A row names recipe, file,
// element type, most tokens (0: any number; rows of attention have none), inputs that a call may
// leave out, and static extents. SPACE: the kernel needs a workspace.

#define KERNELS(PLAIN, SPACE) \
  PLAIN(gated_mlp, K4096_N4096_bf16, bf16, 64, "", {"K", 4096}, {"N", 4096}) \
  PLAIN(gated_mlp, K4096_N4096_fp16, fp16, 64, "", {"K", 4096}, {"N", 4096}) \
  PLAIN(rms_norm_linear, K4096_N6144_bf16, bf16, 64, "", {"K", 4096}, {"N", 6144}) \
  PLAIN(rms_norm_linear, K4096_N6144_fp16, fp16, 64, "", {"K", 4096}, {"N", 6144})

#define ATTENTION_KERNELS(ATTENTION)

#define ARCH "sm_86"

#include "table.h"
