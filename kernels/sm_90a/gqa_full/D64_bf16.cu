// mirage-kernels generate gqa_full --arch sm_90a --dtype bf16 --shape D=64
//
// Formula   [B, T, Hkv, G, D] = softmax(cap * tanh(scale * q k^T / cap)) v over the last `window`
//           keys up to each token's
// Shape     given on the command line
// Proved    equal to the recipe on 100 random draws over finite fields, for the tiles of all 5
//           variants, at full D and uneven edges; a wrong muGraph passes with probability at most
//           2^-40.4.
// Accuracy  emulated error against float64 (unfused program's): unit 2.1e-03 (4.0e-03), tiny
//           1.7e-03 (1.9e-03), outliers 1.7e-03 (2.4e-03), wide 1.7e-03 (2.4e-03), stale 2.0e-03
//           (3.4e-03).
// Launch    as many blocks as run at once, by query rows (T times G) as below; shared memory of
//           their blocks: 166, 85, 90, 209 KiB.

#include "launch.h"

#include "../../forms/gqa_full/flash_attention.cuh"

namespace mirage::generated {
namespace {

struct Shape {
  using T = __nv_bfloat16;
  static constexpr int D = 64;
};
struct UpTo8RowsFewTiles : Shape {
  static constexpr int kRows = 8, kKeys = 16, kWarps = 8, kStages = 5, kBlocks = 1;
};
struct UpTo8Rows : Shape {
  static constexpr int kRows = 8, kKeys = 16, kWarps = 4, kStages = 5, kBlocks = 2;
};
struct UpTo16Rows : Shape {
  static constexpr int kRows = 16, kKeys = 16, kWarps = 4, kStages = 5, kBlocks = 2;
};
struct AnyRows : Shape {
  static constexpr int kRows = 64, kKeys = 128, kWarps = 12, kStages = 5, kBlocks = 1,
                       kProducers = 4;
};

template <class Call>
auto with_config(const AttentionArgs& args, Call call) {
  const int64_t rows = static_cast<int64_t>(args.q_len) * args.G;
  if (rows <= 8 && tile::has_few_work_tiles<8, 64>(args)) return call(UpTo8RowsFewTiles{});
  if (rows <= 8) return call(UpTo8Rows{});
  if (rows <= 16 && tile::has_few_work_tiles<8, 64>(args)) return call(UpTo8RowsFewTiles{});
  if (rows <= 16) return call(UpTo16Rows{});
  return call(AnyRows{});
}

}  // namespace

cudaError_t gqa_full_D64_bf16(const AttentionArgs& args, cudaStream_t stream) {
  return with_config(args, [&](auto config) { return launch<decltype(config)>(args, stream); });
}

int64_t gqa_full_D64_bf16_workspace(const AttentionArgs& args) {
  return with_config(args, [&](auto config) { return workspace<decltype(config)>(args); });
}

}  // namespace mirage::generated
