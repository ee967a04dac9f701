// Keys or values as tiles of a cache, copied whole by the copy engine (TMA).
//
// Of flash decode they are key blocks: one instruction of one lane copies sixteen lines. (Bulk
// copies of a line each are slower than cp.async: the engine takes some sixteen cycles for each,
// which is 256 bytes.) Of wgmma a tile has 64 elements of as many tokens as lie in one page, if its
// first one is a multiple of them: as it lands it is an operand of the tensor cores.
#pragma once

#include "tile/attention/scheduler.cuh"
#include "tile/copy/tma.cuh"

namespace mirage::tile {

// The tokens of a key block as boxes leave them in shared memory: in groups of 64 elements, 128
// bytes, vectors of a line exchanged within its group. Lines of fragments take the tokens in an
// order of their own: two neighbours at four vectors each then meet every bank once, as eight lines
// at one vector do.
template <class T, int kDepth>
struct KeyBlockLines {
  static constexpr int kGroups = (kDepth + kTmaDepth - 1) / kTmaDepth;
  static constexpr int kGroupBytes = kBlockKeys * kTmaRowBytes;
  static constexpr int kGroupVectors = kTmaDepth / kLaneDepth;
  static constexpr int kBytes = kGroups * kGroupBytes;
  static constexpr bool kWhole = kDepth % kTmaDepth == 0;  // one box then has all groups
  // Where the last group begins: it ends with the line, what it shares with the one before comes
  // twice. (Boxes that reach past the line are slower.)
  static constexpr int kLastDepth = kDepth > kTmaDepth ? kDepth - kTmaDepth : 0;

  __device__ static int token(int line) { return (line & ~7) | (line & 1) << 2 | (line >> 1 & 3); }
  __device__ static int place(int token, int vec) {
    const int group = vec / kGroupVectors;
    const int first = group == kGroups - 1 ? kLastDepth / kLaneDepth : group * kGroupVectors;
    return group * kGroupBytes + swizzled_offset(token, vec - first);
  }
  __device__ static int offset(int line, int vec) { return place(token(line), vec); }
};

// A box: so many tokens, of each so many pieces of kTmaDepth elements.
struct BoxShape {
  int tokens, groups;
};

// Boxes of lines of kDepth elements; what lies outside of lines and pages reads as zero. Says
// whether there can be such boxes.
template <class T, int kDepth>
bool encode_boxes(CUtensorMap* map, const AttentionArgs& args, const mirage::Cache& cache,
                  BoxShape shape) {
  const bool paged = args.block_table != nullptr;
  const auto tokens = static_cast<cuuint64_t>(larger(paged ? args.page_size : args.max_len, 1));
  const auto heads = static_cast<cuuint64_t>(args.Hkv);
  const auto pages = static_cast<cuuint64_t>(larger(paged ? args.pages : args.B, 1));
  const auto groups = static_cast<cuuint32_t>(shape.groups);
  const auto bytes = [](int64_t elements) { return static_cast<cuuint64_t>(elements) * sizeof(T); };
  return encode<T, 5>(map, cache.at, {kDepth / groups, tokens, groups, heads, pages},
                      {bytes(cache.token), kTmaRowBytes, bytes(cache.head), bytes(cache.page)},
                      {kTmaDepth, static_cast<cuuint32_t>(shape.tokens), groups, 1, 1}) ==
         cudaSuccess;
}

// The boxes of a key block.
template <class T, int kDepth>
bool encode_key_blocks(CUtensorMap* map, const AttentionArgs& args, const mirage::Cache& cache) {
  constexpr int kGroups = KeyBlockLines<T, kDepth>::kWhole ? KeyBlockLines<T, kDepth>::kGroups : 1;
  return encode_boxes<T, kDepth>(map, args, cache, {kBlockKeys, kGroups});
}

struct KeyBlockPlace {
  int token, head, page;
};

// The lines of a key block, from element `depth` on; `shared` a multiple of kSwizzleAtomBytes.
__device__ inline void copy_tile(char* shared, const CUtensorMap& map, int depth,
                                 KeyBlockPlace from, Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(depth), "r"(from.token), "r"(0), "r"(from.head), "r"(from.page),
      "r"(shared_address(&barrier)), "l"(read_once())
      : "memory");
}

template <class T, int kDepth>
__device__ void copy_key_block(char* shared, const CUtensorMap& map, KeyBlockPlace from,
                               Mbarrier& barrier) {
  using Lines = KeyBlockLines<T, kDepth>;
#pragma unroll
  for (int group = 0; group < Lines::kGroups; group += Lines::kWhole ? Lines::kGroups : 1) {
    const bool last = group == Lines::kGroups - 1;
    const int depth = last ? Lines::kLastDepth : group * kTmaDepth;
    copy_tile(shared + group * Lines::kGroupBytes, map, depth, from, barrier);
  }
}

// Brings the lines of a key block into L2.
template <class T, int kDepth>
__device__ void prefetch_key_block(const CUtensorMap& map, KeyBlockPlace from) {
  using Lines = KeyBlockLines<T, kDepth>;
#pragma unroll
  for (int group = 0; group < Lines::kGroups; group += Lines::kWhole ? Lines::kGroups : 1) {
    const int depth = group == Lines::kGroups - 1 ? Lines::kLastDepth : group * kTmaDepth;
    asm volatile(
        "cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(&map),
        "r"(depth), "r"(from.token), "r"(0), "r"(from.head), "r"(from.page)
        : "memory");
  }
}

__device__ inline void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map));
}

// A barrier's phase completes after so many bytes more.
__device__ inline void await_bytes(Mbarrier& barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}
// For as many threads.
__device__ inline void arrive_for(Mbarrier& barrier, uint32_t threads) {
  asm volatile(
      "mbarrier.arrive.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
      "r"(threads)
      : "memory");
}

// The boxes of a step's keys, or of its values, each a lane's to ask for: all elements of the first
// tokens, then of the next.
template <int kKeys, int kDepth>
class StepBoxes {
 public:
  static constexpr int kGroups = kDepth / kTmaDepth;
  static_assert(kGroups * kKeys / kBlockKeys <= kWarpLanes, "a lane for every box");
  static constexpr int kFewest = kBlockKeys;  // tokens of a box

  __host__ __device__ explicit StepBoxes(const AttentionArgs& args) : tokens_(kKeys) {
    if (args.block_table == nullptr) return;
    const auto page = static_cast<int>(args.page.value), most = page & -page;
    if (most < kKeys) tokens_ = most;
  }

  __host__ __device__ int tokens() const { return tokens_; }
  __device__ bool may_begin(const AttentionArgs& args, int token) const {
    return args.block_table == nullptr || token % tokens_ == 0;
  }
  __device__ bool has(int box) const { return box < kGroups * kKeys / tokens_; }
  __device__ int token(int box) const { return box / kGroups * tokens_; }
  __device__ int depth(int box) const { return box % kGroups * kTmaDepth; }
  // Where it lands.
  __device__ int place(int box) const {
    return (box % kGroups * kKeys + token(box)) * kTmaRowBytes;
  }

 private:
  int tokens_;
};

// A call with boxes of steps, where caches allow it: lines of kDepth elements, and the other
// cache's.
template <class T, int kKeys, int kDepth, int kSecondDepth>
AttentionArgs with_step_boxes(AttentionArgs args) {
  const BoxShape box{StepBoxes<kKeys, kDepth>(args).tokens(), 1};
  args.boxed = box.tokens >= StepBoxes<kKeys, kDepth>::kFewest &&
               encode_boxes<T, kDepth>(&args.k_boxes, args, args.k, box) &&
               encode_boxes<T, kSecondDepth>(&args.v_boxes, args, args.v, box);
  return args;
}

}  // namespace mirage::tile
