// mirage-kernels generate RECIPE --arch sm_90a
//
// Which kernel serves which recipe, element type and static extents. A row names recipe, file,
// element type, most tokens (0: any number; rows of attention have none), inputs that a call may
// leave out, and static extents. SPACE: the kernel needs a workspace.

#define KERNELS(PLAIN, SPACE) \
  PLAIN(rms_norm_linear, K72_N40_bf16, bf16, 64, "", {"K", 72}, {"N", 40}) \
  PLAIN(rms_norm_linear, K72_N40_fp16, fp16, 64, "", {"K", 72}, {"N", 40})

#define ATTENTION_KERNELS(ATTENTION)

#define ARCH "sm_90a"

#include "table.h"
