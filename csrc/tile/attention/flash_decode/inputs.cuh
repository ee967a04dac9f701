// Tiles of queries partitioned out to all threads of a block, a vector of a line to each.
//
// What is computed of them once per item is short code then, and no warp computes what another one
// does: code that runs once takes 5 to 9 cycles per instruction.
#pragma once

#include "tile/attention/lazy_tiles.cuh"

namespace mirage::tile {

// Who has what: neighbouring lanes have a line, and a thread's lines lie as many apart as a block
// has at once. Where there are more threads than vectors, some have the same.
template <int kRows, int kDepth, int kThreads>
struct PartitionedPlaces {
  static constexpr int kVectors16 = kDepth / kLaneDepth;
  static constexpr int kLanes = lanes_of_line(kVectors16, 1);
  static constexpr int kAtOnce = kThreads / kLanes;
  static constexpr int kEach = (kRows + kAtOnce - 1) / kAtOnce;

  __device__ static int vec() { return threadIdx.x % kLanes; }
  __device__ static bool in_line() { return kVectors16 == kLanes || vec() < kVectors16; }
  __device__ static int row(int i) { return (threadIdx.x / kLanes + i * kAtOnce) % kRows; }
};

template <class T, int kLanes, int kEach>
struct PartitionedTile {
  Fragment<Dims::kTokensDepth, T, kEach, 1> mine;
};
template <class T, int kLanes, int kEach>
constexpr bool kIsFragment<PartitionedTile<T, kLanes, kEach>> = true;

template <class T, int kLanes, int kEach>
__device__ const auto& mine(const PartitionedTile<T, kLanes, kEach>& tile) {
  return tile.mine;
}
template <class V>
__device__ const V& mine(const V& operand) {
  return operand;
}

template <class Out, class Op, class T, int kLanes, int kEach>
__device__ auto map(const PartitionedTile<T, kLanes, kEach>& a) {
  return PartitionedTile<Out, kLanes, kEach>{map<Out, Op>(a.mine)};
}
template <class Out, class Op, class T, int kLanes, int kEach, class B>
__device__ auto map(const PartitionedTile<T, kLanes, kEach>& a, const B& b) {
  return PartitionedTile<Out, kLanes, kEach>{map<Out, Op>(a.mine, mine(b))};
}
template <class Out, class T, int kLanes, int kEach, class V, int kRows>
__device__ auto div(const PartitionedTile<T, kLanes, kEach>& a, const RowLines<V, kRows>& b) {
  return PartitionedTile<Out, kLanes, kEach>{div<Out>(a.mine, b)};
}

// Of a thread's own lines.
template <class T, int kLanes, int kEach>
__device__ auto line_sum(const PartitionedTile<T, kLanes, kEach>& tile) {
  static_assert(kLanes <= kWarpLanes, "a line lies in one warp");
  const auto sums = partial_sums(tile.mine);
  RowLines<float, kEach * kLineTile> totals;
  unrolled<kEach>([&](int i) {
    totals.at[i] = sums.at[i];
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) {
      totals.at[i] += __shfl_xor_sync(~0u, totals.at[i], mask);
    }
  });
  return totals;
}
template <class T, int kLanes, int kEach, class B>
__device__ auto line_sum(const PartitionedTile<T, kLanes, kEach>& tile, const B& factor) {
  return line_sum(mul<float>(tile, factor));
}

// By one load, which the compiler splits into four where it is free to.
template <class T>
__device__ Vec16<T> load_16_bytes(const Vec16<T>* from) {
  uint4 words;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return reinterpret_cast<const Vec16<T>&>(words);
}

// A work item's queries and what goes with them, as a thread has them. Nothing waits for what was
// asked for until it is used; what a kernel does not use is not asked for. What goes with the
// queries is asked for early where there are registers for it (kEarly), else when it is used.
template <class T, int kRows, int kDepth, int kThreads, bool kEarly>
class PartitionedInputs {
 public:
  using Places = PartitionedPlaces<kRows, kDepth, kThreads>;
  using Tile = PartitionedTile<T, Places::kLanes, Places::kEach>;

  // Of a work item with so many rows; the last again in place of rows past it.
  __device__ void aim(const AttentionArgs& args, const WorkTile& item, int rows) {
    unrolled<Places::kEach>([&](int i) {
      const auto at = item.template place<kRows>(args, min(Places::row(i), rows - 1));
      lines_[i] = reinterpret_cast<const Vec16<T>*>(query_line<T>(args.q, at));
      heads_[i] = static_cast<int>(at.head);
    });
    head_ = item.head;
  }

  __device__ void ask_for_queries() {
    unrolled<Places::kEach>([&](int i) { queries_.mine.at[i][0] = asked(lines_[i], lines_[i]); });
  }
  __device__ void ask_for_vectors(const AttentionArgs& args) {
    if constexpr (kEarly) {
      unrolled<kVectors>([&](int v) {
        vectors_[v] = asked_vector(args, v);
        row_vectors_[v] = asked_rows(args, v);
      });
    }
  }

  // Brings to L2 what all rows share: a line by heads of the cache, or of all. (Of lines by query
  // heads it is another one, which is there too.)
  __device__ void prefetch_vectors(const AttentionArgs& args) const {
    constexpr int kLineElements = 128 / sizeof(T), kLines = kWarpLanes / kVectors;
    const int v = lane() / kLines, first = lane() % kLines * kLineElements;
    const auto* line = reinterpret_cast<const T*>(vector_line<T>(args, v, head_));
    if (line != nullptr && first < kDepth) prefetch(line + first);
  }

  __device__ Tile queries() const { return found(queries_, true); }
  __device__ DepthFrag<T, kChunkDepth> vector(const AttentionArgs& args, int index) const {
    const auto all = kEarly ? vectors_[index] : asked_vector(args, index);
    return {found(all.at[0][0], args.vectors[index] != nullptr)};
  }
  __device__ Tile row_vectors(const AttentionArgs& args, int index) const {
    const auto all = kEarly ? row_vectors_[index] : asked_rows(args, index);
    return found(all, args.vectors[index] != nullptr);
  }

  // Where all warps can read them, as Line says.
  template <class Line>
  __device__ static void publish(char* lines, const Tile& rows) {
    unrolled<Places::kEach>([&](int i) {
      char* const to = lines + Line::offset(Places::row(i), Places::vec());
      if (Places::in_line()) *reinterpret_cast<Vec16<T>*>(to) = rows.mine.at[i][0];
    });
  }

 private:
  static constexpr int kVectors = 4;

  __device__ DepthFrag<T, kChunkDepth> asked_vector(const AttentionArgs& args, int index) const {
    return {asked(vector_line<T>(args, index, head_), lines_[0])};
  }
  __device__ Tile asked_rows(const AttentionArgs& args, int index) const {
    Tile result;
    unrolled<Places::kEach>([&](int i) {
      result.mine.at[i][0] = asked(vector_line<T>(args, index, heads_[i]), lines_[i]);
    });
    return result;
  }
  // Of a line, or of one that is there in any case: without a branch it is one load.
  __device__ static Vec16<T> asked(const Vec16<T>* line, const Vec16<T>* there) {
    const auto* from = line == nullptr ? there : line;
    if (Places::in_line()) from += Places::vec();
    return load_16_bytes(from);
  }
  // Zeros in place of what is of no line.
  __device__ static Vec16<T> found(const Vec16<T>& vec, bool there) {
    uint4 words = reinterpret_cast<const uint4&>(vec);
    if (!there || !Places::in_line()) words = uint4{};
    return reinterpret_cast<const Vec16<T>&>(words);
  }
  __device__ static Tile found(const Tile& tile, bool there) {
    Tile result;
    unrolled<Places::kEach>(
        [&](int i) { result.mine.at[i][0] = found(tile.mine.at[i][0], there); });
    return result;
  }

  const Vec16<T>* lines_[Places::kEach] = {};
  int heads_[Places::kEach] = {}, head_ = 0;
  Tile queries_{}, row_vectors_[kVectors]{};
  DepthFrag<T, kChunkDepth> vectors_[kVectors]{};
};

}  // namespace mirage::tile
