// Makers that hold tokens in registers: two blocks of a cluster share a tile and split the depth.
//
// They are blocks of held.cuh whose rows are the inner ones. Each finishes half of the rows, and
// leaves them as other makers do (apart.cuh). Products of warpgroups and boxes bring totals sooner
// than slices: R 64, 64 tokens, 11.8 us against 12.9.
#pragma once

#include "tile/apart.cuh"
#include "tile/held_meeting.cuh"

namespace mirage::tile {

// By all that multiply: body(element) for all elements that this thread finishes, left with the
// stamp, which lies behind all else. `lines` is shared memory for what warps finish.
template <class Block, class Apart, class Body>
__device__ void make_held(Block block, const Apart& apart, char* lines, OutputTile tile,
                          Body body) {
  using T = typename Block::T;
  constexpr int kOctets = Block::Sums::kOwn, kQuads = kOctets * kLaneDepth / Apart::kQuad;
  constexpr int kLineBytes = HeldStaging<Block>::kLineBytes;
  const uint64_t stamp = apart.stamp(block.shared + Block::kBytes);
  const int first_row = Block::group() * kOctets * kLineTile;
  char* const own = lines + warp_index() * HeldStaging<Block>::kWarpBytes;
  const auto place = [&](int line, int pair) {
    return reinterpret_cast<Pair<T>*>(own + line * kLineBytes) + pair;
  };
#pragma unroll
  for (int m = 0; m < kOctets; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = lane_line() + half * kLineTile, row = m * kLineTile + lane_quarter() * 2;
      const int token = Block::first_token() + line;
      const DealtElement low{{first_row + row, token}, 0, m, 2 * half, nullptr};
      const DealtElement high{{first_row + row + 1, token}, 0, m, 2 * half + 1, nullptr};
      *place(line, row / 2) = from_floats<T>(make_float2(body(low), body(high)));
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = lane(); i < kRowTile * kQuads; i += kWarpLanes) {
    const int line = i / kQuads, row = i % kQuads * Apart::kQuad;
    const int token = tile.first_token + Block::first_token() + line;
    if (Block::first_token() >= Block::kTokens || token >= tile.tokens) continue;
    const auto& value = reinterpret_cast<const uint64_t&>(*place(line, row / 2));
    apart.leave_quad(token, tile.first_row + first_row + row, {stamp, value});
  }
  apart.template tell<Block::kWorkers>(stamp);
}

}  // namespace mirage::tile
