// What is computed of the keys themselves: values per key, by lines, until they meet scores.
//
// The warps of a warpgroup take 16 keys of every 64 each, so that no value is computed twice; where
// values meet scores, all warps need all of them, and they go through shared memory.
#pragma once

#include "tile/attention/wgmma/scores.cuh"

namespace mirage::tile {

// Values of a step's keys, one in each lane: that of line g + 8 i of this warp's 16 among the k-th
// 64 in the lane of quarter 2 k + i. If there are fewer, they are in several lanes.
template <class V, int kKeys>
struct WgmmaLines {
  static constexpr int kOfLine = kKeys / kProductKeys * 2;  // values of the lanes of a line
  static constexpr int kPitch = kKeys / 4 + 4;              // of a quarter's, in a room
  static constexpr int kRoom = 4 * kPitch;
  V at;
  KeyRooms* rooms;
};

constexpr int kLineLanes = kWarpLanes / kLineTile;  // that share a line
__device__ inline int warp_in_group() { return warp_index() % kGroupWarps; }

// The lines of this warp, of the k-th 64 keys.
template <class T, int kKeys, int kDepth>
__device__ RowFrag<T, kWarpRows, kDepth> lines_of(WgmmaKeys<T, kKeys, kDepth> keys, int k) {
  return filled<RowFrag<T, kWarpRows, kDepth>>([&](int i, int c) {
    const int line = k * kProductKeys + warp_in_group() * kWarpRows + i * kLineTile + lane_line();
    const int vec = c * kChunkVectors + lane_quarter();
    const int at = vec / 8 * (kKeys * kTmaRowBytes) + swizzled_offset(line, vec % 8);
    return *reinterpret_cast<const Vec16<T>*>(keys.at + at);
  });
}
template <class B>
__device__ const B& lines_of(const B& other, int) {
  return other;
}

// The line whose value a lane has.
template <int kKeys>
__device__ int own_line() {
  const int own = lane_quarter() % WgmmaLines<float, kKeys>::kOfLine;
  return own / 2 * kProductKeys + warp_in_group() * kWarpRows + own % 2 * kLineTile + lane_line();
}

// What a lane has of each line's sum.
template <class Lines>
__device__ auto lane_sums(const Lines& lines) {
  return partial_sums(lines);
}
template <class Lines, class B>
__device__ auto lane_sums(const Lines& lines, const B& factor) {
  return partial_sums(map<float, Mul>(lines, factor));
}

// The sums over the lanes of each line of what they have of it, one to each lane.
template <int kKeys>
__device__ float own_total(const float (&mine)[kKeys / kProductKeys][2]) {
  const int quarter = lane_quarter();
  float half[kKeys / kProductKeys];  // of line 2 k + quarter % 2
  unrolled<kKeys / kProductKeys>([&](int k) {
    const float resident = quarter % 2 == 0 ? mine[k][0] : mine[k][1];
    const float given = quarter % 2 == 0 ? mine[k][1] : mine[k][0];
    half[k] = resident + __shfl_xor_sync(~0u, given, 1);
  });
  if constexpr (kKeys == kProductKeys) return half[0] + __shfl_xor_sync(~0u, half[0], 2);
  const float resident = quarter / 2 == 0 ? half[0] : half[1];
  const float given = quarter / 2 == 0 ? half[1] : half[0];
  return resident + __shfl_xor_sync(~0u, given, 2);
}

// [L, D] -> [L], as for fragments: of the keys, or of their products with something.
template <class T, int kKeys, int kDepth, class... B>
__device__ auto line_sum(const WgmmaKeys<T, kKeys, kDepth>& keys, const B&... factor) {
  static_assert(kKeys <= 2 * kProductKeys, "a line for each lane");
  float sums[kKeys / kProductKeys][2];
  unrolled<kKeys / kProductKeys>([&](int k) {
    const auto partial = lane_sums(lines_of(keys, k), lines_of(factor, k)...);
    sums[k][0] = partial.at[0];
    sums[k][1] = partial.at[1];
  });
  return WgmmaLines<float, kKeys>{own_total<kKeys>(sums), keys.rooms};
}

// The sum of squares of the line whose value this lane has, which it reads itself, or half of it
// where two lanes have the same: no register holds more than a vector, and hardly anything is left
// to exchange. Lanes begin at different vectors, so that eight of them meet every bank once.
template <class T, int kKeys, int kDepth>
__device__ float own_squares(const WgmmaKeys<T, kKeys, kDepth>& keys) {
  constexpr int kOfLine = WgmmaLines<float, kKeys>::kOfLine, kSharers = kLineLanes / kOfLine;
  constexpr int kOwn = kDepth / kLaneDepth / kSharers, kTmaBytes = kKeys * kTmaRowBytes;
  const int first = lane_quarter() / kOfLine * kOwn, turn = lane_quarter() * 2 % kOwn;
  const char* const at = keys.at + first / 8 * kTmaBytes;
  float sums[2] = {};
  unrolled<kOwn>([&](int i) {
    const int place = swizzled_offset(own_line<kKeys>(), (first % 8 + i % 8) ^ turn);
    const auto vec = *reinterpret_cast<const Vec16<T>*>(at + i / 8 * kTmaBytes + place);
#pragma unroll
    for (const auto& two : vec.pairs) {
      const float2 pair = to_floats(two);
      sums[0] += pair.x * pair.x;
      sums[1] += pair.y * pair.y;
    }
  });
  const float own = sums[0] + sums[1];
  return kSharers == 1 ? own : own + __shfl_xor_sync(~0u, own, 2);
}

// Sums of squares.
template <class T, int kKeys, int kDepth>
__device__ auto line_sum(const WgmmaKeys<T, kKeys, kDepth>& keys,
                         const WgmmaKeys<T, kKeys, kDepth>&) {
  return WgmmaLines<float, kKeys>{own_squares(keys), keys.rooms};
}

// Elementwise with numbers and with each other they stay lines.
template <class V, int kKeys>
constexpr bool kIsFragment<WgmmaLines<V, kKeys>> = true;  // not as other values here
template <class V, int kKeys>
__device__ V key_line(const WgmmaLines<V, kKeys>& lines) {
  return lines.at;
}
template <class V, std::enable_if_t<std::is_arithmetic_v<V>, int> = 0>
__device__ V key_line(const V& number) {
  return number;
}
template <class Out, class Op, class V, int kKeys, class... B>
__device__ auto map(const WgmmaLines<V, kKeys>& a, const B&... b) {
  return WgmmaLines<Out, kKeys>{OnNumbers<Op>::of(a.at, key_line(b)...), a.rooms};
}
template <class Out, class Op, class A, class V, int kKeys,
          std::enable_if_t<std::is_arithmetic_v<A>, int> = 0>
__device__ auto map(const A& a, const WgmmaLines<V, kKeys>& b) {
  return WgmmaLines<Out, kKeys>{OnNumbers<Op>::of(a, b.at), b.rooms};
}

// The values of all keys, as scores have them. The room was read before the barrier of the turn
// between, if it was.
template <int kKeys>
__device__ RowVector<float, kKeys> spread(const WgmmaLines<float, kKeys>& lines) {
  using Lines = WgmmaLines<float, kKeys>;
  float* const room = lines.rooms->at + lines.rooms->turn % 2 * Lines::kRoom;
  ++lines.rooms->turn;
  const int own = lane_quarter() % Lines::kOfLine;
  const int tile = own / 2 * (kProductKeys / kTokenTile) + warp_in_group() * 2 + own % 2;
  room[lane_line() / 2 * Lines::kPitch + tile * 2 + lane_line() % 2] = lines.at;
  sync_warpgroup();
  RowVector<float, kKeys> found;
#pragma unroll
  for (int n = 0; n < kKeys / kTokenTile; n += 2) {
    const float4 four =
        *reinterpret_cast<const float4*>(room + lane_quarter() * Lines::kPitch + n * 2);
    found.at[n][0] = four.x;
    found.at[n][1] = four.y;
    found.at[n + 1][0] = four.z;
    found.at[n + 1][1] = four.w;
  }
  return found;
}

template <class Out, class Op>
constexpr bool kIsFactor = std::is_same_v<Op, Mul> && std::is_same_v<Out, float>;
template <class Out, class Op, class V, int kKeys>
__device__ auto map(const Scores<float, kWarpRows, kKeys>& a, const WgmmaLines<V, kKeys>& b) {
  if constexpr (kIsFactor<Out, Op>) {
    const float log2_e = kLog2E;
    const auto factors = spread(map<float, Mul>(b, log2_e));
    return ScaledScores<kKeys, RowVector<float, kKeys>>{a, factors};
  } else {
    return map<Out, Op>(a, spread(b));
  }
}
template <class Out, class Op, class V, int kKeys>
__device__ auto map(const WgmmaLines<V, kKeys>& a, const Scores<float, kWarpRows, kKeys>& b) {
  if constexpr (kIsFactor<Out, Op>) {
    return map<Out, Op>(b, a);
  } else {
    return map<Out, Op>(spread(a), b);
  }
}

}  // namespace mirage::tile
