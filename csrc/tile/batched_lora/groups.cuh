// Groups of tokens with the same adapter.
#pragma once

#include "launch.h"
#include "tile/mma/fragments.cuh"

namespace mirage::tile {

constexpr int kMostGrouped = 2 * kWarpLanes;  // tokens that are grouped together

// Up to eight tokens of one adapter, a byte each; unused places repeat the first token.
struct AdapterGroup {
  uint64_t tokens;  // numbers within a tile
  int adapter, count;

  __device__ int token(int place) const { return static_cast<int>(tokens >> 8 * place & 0xff); }
};

constexpr int kGroupsBytes = kMostGrouped * static_cast<int>(sizeof(AdapterGroup));

// The groups of a tile of tokens, two tokens to a lane; built by all lanes of a warp.
class Adapters {
 public:
  static constexpr int kNone = -1;

  // Of at most `most` tokens from `first_token` on.
  __device__ Adapters(const LaunchArgs& args, int first_token, int most) {
    const int64_t end = min(args.dims[0], static_cast<int64_t>(first_token) + most);
    low_.adapter = load(args, first_token + lane(), end);
    high_.adapter = load(args, first_token + lane() + kWarpLanes, end);
    chosen_ = both(low_.adapter != kNone, high_.adapter != kNone);
    low_.tokens = high_.tokens = chosen_;
#pragma unroll 1
    for (int bit = 0; args.slices >> bit > 0; ++bit) {
      const uint64_t set = both(low_.adapter >> bit & 1, high_.adapter >> bit & 1);
      low_.tokens &= low_.adapter >> bit & 1 ? set : ~set;
      high_.tokens &= high_.adapter >> bit & 1 ? set : ~set;
    }
    begins_ = both(begins(low_, lane()), begins(high_, lane() + kWarpLanes));
  }

  __device__ int count() const { return __popcll(begins_); }
  __device__ bool has(int token) const { return chosen_ >> token & 1; }

  // groups[number] = the group, for all of them.
  __device__ void list(AdapterGroup* groups) const {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int token = lane() + half * kWarpLanes;
      if (begins_ >> token & 1) groups[number(token)] = group(half == 0 ? low_ : high_, token);
    }
    __syncwarp();
  }

 private:
  // A token's adapter, and the set of tokens with the same one; any set if it has none.
  struct Alike {
    uint64_t tokens;
    int adapter;
  };

  __device__ static uint64_t before(int token) { return (uint64_t{1} << token) - 1; }
  __device__ static uint64_t both(bool low, bool high) {
    return static_cast<uint64_t>(__ballot_sync(~0u, high)) << kWarpLanes | __ballot_sync(~0u, low);
  }
  __device__ static bool begins(const Alike& alike, int token) {
    return alike.adapter != kNone && __popcll(alike.tokens & before(token)) % kTokenTile == 0;
  }
  __device__ int number(int token) const { return __popcll(begins_ & before(token)); }

  // Ids outside the stack mean none: nothing outside is read.
  __device__ static int load(const LaunchArgs& args, int token, int64_t end) {
    if (token >= end) return kNone;
    const int64_t id = args.wide_ids ? static_cast<const int64_t*>(args.slice_ids)[token]
                                     : static_cast<const int32_t*>(args.slice_ids)[token];
    return id >= 0 && id < args.slices ? static_cast<int>(id) : kNone;
  }

  // The group that begins at a token.
  __device__ static AdapterGroup group(const Alike& alike, int token) {
    uint64_t left = alike.tokens & ~before(token), tokens = 0;
    const int count = min(__popcll(left), kTokenTile);
#pragma unroll
    for (int place = 0; place < kTokenTile; ++place) {
      const int next = place < count ? __ffsll(static_cast<long long>(left)) - 1 : token;
      tokens |= static_cast<uint64_t>(next) << 8 * place;
      left &= left - 1;
    }
    return {tokens, alike.adapter, count};
  }

  Alike low_, high_;
  uint64_t chosen_, begins_;  // one bit per token: has an adapter, begins a group
};

}  // namespace mirage::tile
