// mirage-kernels generate mla_decode --arch sm_90a --dtype fp16 --shape C=512,P=64
//
// Formula   [B, Hq, C] = softmax(scale * (q_latent latent^T + q_rope k_rope^T)) latent over the
//           first seq_lens
// Shape     DeepSeek-V3 and R1, DeepSeek-V2-Lite, Kimi-K2
// Proved    equal to the recipe on 44 random draws over finite fields, for the tiles of its one
//           variant, at full C, P and uneven edges; a wrong muGraph passes with probability at most
//           2^-40.4.
// Accuracy  emulated error against float64 (unfused program's): unit 2.3e-04 (6.2e-04), tiny
//           3.0e-04 (4.7e-04), outliers 2.9e-04 (inf), wide 2.4e-05 (5.6e-03), stale 2.4e-04
//           (5.1e-04).
// Launch    as many blocks as run at once, by query rows (Hq) as below; shared memory of their
//           blocks: 226 KiB.

#include "launch.h"

#include "../../forms/mla_decode/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __half;
  static constexpr int C = 512, P = 64;
};
struct AnyRows : Shape {
  static constexpr int kRows = 8, kKeys = 16, kWarps = 4, kStages = 3, kBlocks = 1;
};

template <class Call>
auto with_config(const AttentionArgs& args, Call call) {
  return call(AnyRows{});
}

}  // namespace

cudaError_t mla_decode_C512_P64_fp16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t mla_decode_C512_P64_fp16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
