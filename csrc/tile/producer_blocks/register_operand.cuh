// Producer blocks with register operands: two blocks of a cluster share a tile and split the depth.
//
// They are blocks of register_operand/block.cuh whose rows are the inner ones. Each finishes half
// of the rows and publishes them like other producers (intermediate.cuh). wgmma and TMA bring
// results sooner than sliced-K: R 64, 64 tokens, 11.8 us against 12.9.
#pragma once

#include "tile/producer_blocks/intermediate.cuh"
#include "tile/register_operand/reduce.cuh"

namespace mirage::tile {

// By all consumer warps: body(element) for all elements that this thread finishes, published with
// the tag. `lines`: shared memory for the warps' results.
template <class Block, class ProducerBlocks, class Body>
__device__ void produce_register_operand(Block block, const ProducerBlocks& producers, char* lines,
                                         OutputTile tile, Body body) {
  using T = typename Block::T;
  constexpr int kVectors16 = Block::Sums::kOwn,
                kQuads = kVectors16 * kLaneDepth / ProducerBlocks::kQuad;
  constexpr int kLineBytes = RegisterOperandStaging<Block>::kLineBytes;
  const uint64_t tag = producers.tag(block.shared + Block::kBytes);
  const int first_row = Block::group() * kVectors16 * kLineTile;
  char* const own = lines + warp_index() * RegisterOperandStaging<Block>::kWarpBytes;
  const auto place = [&](int line, int pair) {
    return reinterpret_cast<Pair<T>*>(own + line * kLineBytes) + pair;
  };
  unrolled<kVectors16, 2>([&](int m, int half) {
    const int line = lane_line() + half * kLineTile, row = m * kLineTile + lane_quarter() * 2;
    const int token = Block::first_token() + line;
    const OwnedElement low{{first_row + row, token}, 0, m, 2 * half, nullptr};
    const OwnedElement high{{first_row + row + 1, token}, 0, m, 2 * half + 1, nullptr};
    *place(line, row / 2) = from_floats<T>(make_float2(body(low), body(high)));
  });
  __syncwarp();
#pragma unroll
  for (int i = lane(); i < kRowTile * kQuads; i += kWarpLanes) {
    const int line = i / kQuads, row = i % kQuads * ProducerBlocks::kQuad;
    const int token = tile.first_token + Block::first_token() + line;
    if (Block::first_token() >= Block::kTokens || token >= tile.tokens) continue;
    const auto& value = reinterpret_cast<const uint64_t&>(*place(line, row / 2));
    producers.publish_quad(token, tile.first_row + first_row + row, {tag, value});
  }
  producers.template publish_tag<Block::kWorkers>(tag);
}

}  // namespace mirage::tile
