// What is computed of the keys themselves: values per key, by lines, until they meet scores.
//
// The warps of a warpgroup take 16 keys of every 64 each, so that no value is computed twice; where
// values meet scores, all warps need all of them, and they go through shared memory.
#pragma once

#include "tile/attention_wide_products.cuh"

namespace mirage::tile {

// Values of a step's keys: at[k][i] is that of line g + 8 i of this warp's 16 among 64.
template <class V, int kKeys>
struct WideLines {
  V at[kKeys / kProductKeys][2];
  V* room;  // of the warpgroup, kKeys values
};

__device__ inline int warp_in_group() { return warp_index() % kGroupWarps; }

// A barrier of a warpgroup; 0 and 1 are the block's.
__device__ inline void meet_warpgroup() {
  __syncwarp();
  asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(2 + warp_index() / kGroupWarps),
               "n"(kGroupThreads)
               : "memory");
}

// The lines of this warp, of the k-th 64 keys.
template <class T, int kKeys, int kDepth>
__device__ RowFrag<T, kWarpRows, kDepth> lines_of(WideKeys<T, kKeys, kDepth> keys, int k) {
  RowFrag<T, kWarpRows, kDepth> lines;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int line = k * kProductKeys + warp_in_group() * kWarpRows + i * kLineTile + lane_line();
#pragma unroll
    for (int c = 0; c < kDepth / kChunkDepth; ++c) {
      const int octet = c * kChunkOctets + lane_quarter();
      const int at = octet / 8 * (kKeys * kBoxLineBytes) + box_offset(line, octet % 8);
      lines.at[i][c] = *reinterpret_cast<const Octet<T>*>(keys.at + at);
    }
  }
  return lines;
}
template <class B>
__device__ const B& lines_of(const B& other, int) {
  return other;
}

// [L, D] -> [L], as for fragments: of the keys, or of their products with something.
template <class T, int kKeys, int kDepth, class... B>
__device__ auto line_sum(const WideKeys<T, kKeys, kDepth>& keys, const B&... factor) {
  WideLines<float, kKeys> result;
  result.room = keys.room;
#pragma unroll
  for (int k = 0; k < kKeys / kProductKeys; ++k) {
    const auto lines = lines_of(keys, k);
    const auto sums = line_sum(lines, lines_of(factor, k)...);
    result.at[k][0] = sums.at[0][0];
    result.at[k][1] = sums.at[0][1];
  }
  return result;
}

// Elementwise with numbers and with each other they stay lines.
template <class V>
constexpr bool kIsNumber = std::is_arithmetic_v<V>;
template <class V, int kKeys>
__device__ V wide_line(const WideLines<V, kKeys>& lines, int k, int i) {
  return lines.at[k][i];
}
template <class V, std::enable_if_t<kIsNumber<V>, int> = 0>
__device__ V wide_line(const V& number, int, int) {
  return number;
}
template <class Out, int kKeys, class Room, class F, class... Operands>
__device__ auto each_wide_line(Room* room, F f, const Operands&... operands) {
  WideLines<Out, kKeys> result;
  result.room = reinterpret_cast<Out*>(room);
#pragma unroll
  for (int k = 0; k < kKeys / kProductKeys; ++k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) result.at[k][i] = f(wide_line(operands, k, i)...);
  }
  return result;
}
template <class Out, class Op, class V, int kKeys>
__device__ auto map(const WideLines<V, kKeys>& a) {
  return each_wide_line<Out, kKeys>(a.room, [](auto x) { return OnNumbers<Op>::of(x); }, a);
}
template <class Out, class Op, class V, int kKeys, class B, std::enable_if_t<kIsNumber<B>, int> = 0>
__device__ auto map(const WideLines<V, kKeys>& a, const B& b) {
  return each_wide_line<Out, kKeys>(
      a.room, [](auto x, auto y) { return OnNumbers<Op>::of(x, y); }, a, b);
}
template <class Out, class Op, class A, class V, int kKeys, std::enable_if_t<kIsNumber<A>, int> = 0>
__device__ auto map(const A& a, const WideLines<V, kKeys>& b) {
  return each_wide_line<Out, kKeys>(
      b.room, [](auto x, auto y) { return OnNumbers<Op>::of(x, y); }, a, b);
}
template <class Out, class Op, class V, class W, int kKeys>
__device__ auto map(const WideLines<V, kKeys>& a, const WideLines<W, kKeys>& b) {
  return each_wide_line<Out, kKeys>(
      a.room, [](auto x, auto y) { return OnNumbers<Op>::of(x, y); }, a, b);
}

// The values of all keys, as scores have them.
template <class V, int kKeys>
__device__ RowVector<V, kKeys> spread(const WideLines<V, kKeys>& lines) {
  meet_warpgroup();  // values that were spread before have been read
#pragma unroll
  for (int k = 0; k < kKeys / kProductKeys; ++k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = k * kProductKeys + warp_in_group() * kWarpRows + i * kLineTile + lane_line();
      if (lane_quarter() == 0) lines.room[at] = lines.at[k][i];
    }
  }
  meet_warpgroup();
  RowVector<V, kKeys> found;
#pragma unroll
  for (int n = 0; n < kKeys / kTokenTile; ++n) {
    const float2 pair =
        *reinterpret_cast<const float2*>(lines.room + n * kTokenTile + lane_quarter() * 2);
    found.at[n][0] = pair.x;
    found.at[n][1] = pair.y;
  }
  return found;
}

template <class Out, class Op, class S, class V, int kKeys>
__device__ auto map(const Scores<S, kWarpRows, kKeys>& a, const WideLines<V, kKeys>& b) {
  return map<Out, Op>(a, spread(b));
}
template <class Out, class Op, class S, class V, int kKeys>
__device__ auto map(const WideLines<V, kKeys>& a, const Scores<S, kWarpRows, kKeys>& b) {
  return map<Out, Op>(spread(a), b);
}

}  // namespace mirage::tile
