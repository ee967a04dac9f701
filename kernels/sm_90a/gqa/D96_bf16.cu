// mirage-kernels generate gqa --arch sm_90a --dtype bf16 --shape D=96
//
// Formula   [B, Hkv, G, D] = softmax(scale * q k^T) v over the first seq_lens keys of each sequence
// Shape     Phi-3-mini (multi-head)
// Proved    equal to the recipe on 72 random draws over finite fields, for the tiles of all 3
//           variants, at full D and uneven edges; a wrong muGraph passes with probability at most
//           2^-40.4.
// Accuracy  emulated error against float64 (unfused program's): unit 2.0e-03 (5.5e-03), tiny
//           1.6e-03 (2.0e-03), outliers 2.9e-05 (7.4e-01), wide 1.4e-04 (8.3e-02), stale 1.9e-03
//           (4.2e-03).
// Launch    as many blocks as run at once, by query rows (G) as below; shared memory of their
//           blocks: 200, 103, 82 KiB.

#include "launch.h"

#include "../../forms/gqa/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int D = 96;
};
struct UpTo8RowsFewTiles : Shape {
  static constexpr int kRows = 8, kKeys = 16, kWarps = 8, kStages = 3, kBlocks = 1;
};
struct UpTo8Rows : Shape {
  static constexpr int kRows = 8, kKeys = 16, kWarps = 4, kStages = 3, kBlocks = 2;
};
struct AnyRows : Shape {
  static constexpr int kRows = 16, kKeys = 16, kWarps = 4, kStages = 2, kBlocks = 2;
};

template <class Call>
auto with_config(const AttentionArgs& args, Call call) {
  const int64_t rows = static_cast<int64_t>(args.q_len) * args.G;
  if (rows <= 8 && tile::has_few_work_tiles<8, 96>(args)) return call(UpTo8RowsFewTiles{});
  if (rows <= 8) return call(UpTo8Rows{});
  return call(AnyRows{});
}

}  // namespace

cudaError_t gqa_D96_bf16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t gqa_D96_bf16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
