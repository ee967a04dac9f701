// mirage-kernels generate gqa --arch sm_90a --dtype fp16 --shape D=192
//
// Formula   [B, Hkv, G, D] = softmax(scale * q k^T) v over the first seq_lens keys of each sequence
// Shape     Nemotron-4-340B
// Proved    equal to the recipe on 58 random draws over finite fields, for the tiles of both
//           variants, at full D and uneven edges; a wrong muGraph passes with probability at most
//           2^-40.4.
// Accuracy  emulated error against float64 (unfused program's): unit 2.4e-04 (6.9e-04), tiny
//           2.8e-04 (3.2e-04), outliers 3.9e-04 (inf), wide 2.1e-05 (inf), stale 2.4e-04 (5.2e-04).
// Launch    as many blocks as run at once, by query rows (G) as below; shared memory of their
//           blocks: 196, 100 KiB.

#include "launch.h"

#include "../../forms/gqa/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __half;
  static constexpr int D = 192;
};
struct AnyRowsFewTiles : Shape {
  static constexpr int kRows = 8, kKeys = 16, kWarps = 8, kStages = 2, kBlocks = 1;
};
struct AnyRows : Shape {
  static constexpr int kRows = 8, kKeys = 16, kWarps = 4, kStages = 2, kBlocks = 2;
};

template <class Call>
auto with_config(const AttentionArgs& args, Call call) {
  if (tile::has_few_work_tiles<8, 192>(args)) return call(AnyRowsFewTiles{});
  return call(AnyRows{});
}

}  // namespace

cudaError_t gqa_D192_fp16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t gqa_D192_fp16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
