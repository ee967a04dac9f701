// mirage-kernels generate gqa --arch sm_90a --dtype fp16 --shape D=96
//
// Formula   [B, Hkv, G, D] = softmax(scale * q k^T) v over the first seq_lens keys of each sequence
// Shape     Phi-3-mini (multi-head)
// Proved    equal to the recipe on 72 random draws over finite fields, for the tiles of all 3
//           variants, at full D and uneven edges; a wrong muGraph passes with probability at most
//           2^-40.4.
// Accuracy  emulated error against float64 (unfused program's): unit 2.4e-04 (6.9e-04), tiny
//           2.8e-04 (3.2e-04), outliers 3.9e-04 (inf), wide 2.1e-05 (inf), stale 2.4e-04 (5.2e-04).
// Launch    as many blocks as run at once, by query rows (G) as below; shared memory of their
//           blocks: 200, 103, 82 KiB.

#include "launch.h"

#include "../../forms/gqa/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __half;
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

cudaError_t gqa_D96_fp16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t gqa_D96_fp16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
