// Stands in for a shared object that `mirage-kernels compile` made: kernels that print their names.
#include <cstdio>

#include "launch.h"

namespace mirage::generated {

cudaError_t tell(const char* name, int64_t count) {
  std::printf("loaded %s %d\n", name, static_cast<int>(count));
  std::fflush(stdout);
  return cudaSuccess;
}

cudaError_t rms_norm_K40_fp16(const LaunchArgs& args, cudaStream_t) {
  return tell("K40", args.dims[0]);
}
cudaError_t rms_norm_K64_fp16(const LaunchArgs& args, cudaStream_t) {
  return tell("K64", args.dims[0]);
}
cudaError_t gqa_D72_fp16(const AttentionArgs& args, cudaStream_t) { return tell("D72", args.B); }
int64_t gqa_D72_fp16_workspace(const AttentionArgs&) { return 256; }

}  // namespace mirage::generated

#define KERNELS(PLAIN, SPACE)                                    \
  PLAIN(rms_norm, K40_fp16, fp16, 0, "weight_offset", {"K", 40}) \
  PLAIN(rms_norm, K64_fp16, fp16, 0, "weight_offset", {"K", 64})
#define ATTENTION_KERNELS(ATTENTION) ATTENTION(gqa, D72_fp16, fp16, "", {"D", 72})
#ifndef ARCH
#define ARCH "sm_90a"
#endif

#include "rows.h"
#include "table.h"

MIRAGE_EXPORT_ROWS
