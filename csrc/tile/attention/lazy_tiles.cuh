// Tiles that stay where they lie until they are used, and what is computed of them: chunk by chunk,
// anew at each use. Registers are left to what a loop carries.
#pragma once

#include "tile/attention/flash_decode/products.cuh"

namespace mirage::tile {

// Vectors that are read anew each time: the compiler would hold_resident in registers what it knows
// to be the same. Zeros where there is no line, without a branch: what is multiplied by one line
// and added to another is one instruction then.
template <class T>
__device__ Vec16<T> read_global(const Vec16<T>* line, int vec) {
  uint4 found{};
  asm volatile(
      "{ .reg .pred there;\n"
      "setp.ne.u64 there, %5, 0;\n"
      "@there ld.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "+r"(found.x), "+r"(found.y), "+r"(found.z), "+r"(found.w)
      : "l"(line + vec), "l"(line));
  return reinterpret_cast<const Vec16<T>&>(found);
}
template <class T>
__device__ Vec16<T> read_shared(const char* at) {
  uint4 found;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(at))));
  return reinterpret_cast<const Vec16<T>&>(found);
}

// The line of an input along D for a head, or the only one; null where the input is absent.
template <class T>
__device__ const Vec16<T>* vector_line(const AttentionArgs& args, int index, int64_t head) {
  const auto* first = static_cast<const T*>(args.vectors[index]);
  if (first == nullptr) return nullptr;
  return reinterpret_cast<const Vec16<T>*>(first + head * args.vector_heads[index]);
}

// A tile by its chunks of 32 k: Source has kChunks and chunk(c), a fragment of one chunk.
template <class Source>
struct Lazy {
  Source source;
};
template <class Source>
constexpr bool kIsFragment<Lazy<Source>> = true;

// [D] in global memory, which the L1 cache holds; zeros where it is absent.
template <class T, int kDepth>
struct LineSource {
  static constexpr int kChunks = kDepth / kChunkDepth;
  const Vec16<T>* at;

  __device__ DepthFrag<T, kChunkDepth> chunk(int c) const {
    return {read_global(at, c * kChunkVectors + lane_quarter())};
  }
};

// The same for each row of a tile of queries.
template <class T, int kRows, int kDepth>
struct RowLinesSource {
  static constexpr int kChunks = kDepth / kChunkDepth;
  const Vec16<T>* at[kRows / kLineTile];

  __device__ TokenFrag<T, kRows, kChunkDepth> chunk(int c) const {
    return filled<TokenFrag<T, kRows, kChunkDepth>>(
        [&](int i, int) { return read_global(at[i], c * kChunkVectors + lane_quarter()); });
  }
};

// The lines of one step in shared memory, [L, D]. What is computed of them and summed is straight
// code for so many chunks, as registers allow.
template <class T, int kKeys, int kDepth, int kStraight_ = kDepth / kChunkDepth>
struct SharedSource {
  static constexpr int kChunks = kDepth / kChunkDepth, kStraight = kStraight_;
  const char* at;

  __device__ RowFrag<T, kKeys, kChunkDepth> chunk(int c) const {
    return filled<RowFrag<T, kKeys, kChunkDepth>>([&](int i, int) {
      return read_shared<T>(at +
                            KeyBlockLines<T, kDepth>::offset(i * kLineTile + lane_line(),
                                                             c * kChunkVectors + lane_quarter()));
    });
  }
};

template <class Source>
__device__ auto chunk_of(const Lazy<Source>& tile, int c) {
  return tile.source.chunk(c);
}
template <Dims kDims, class T, int kLines, int kChunks>
__device__ auto chunk_of(const Fragment<kDims, T, kLines, kChunks>& tile, int c) {
  return filled<Fragment<kDims, T, kLines, 1>>([&](int i, int) { return tile.at[i][c]; });
}
template <class V>
__device__ const V& chunk_of(const V& number, int) {  // and one value per line
  return number;
}

template <Dims kDims, class T, int kLines, class Source>
__device__ auto joined(const Lazy<Source>& tile, const Fragment<kDims, T, kLines, 1>&) {
  Fragment<kDims, T, kLines, Source::kChunks> whole;
  unrolled<Source::kChunks>([&](int c) {
    const auto one = tile.source.chunk(c);
    unrolled<kLines>([&](int i) { whole.at[i][c] = one.at[i][0]; });
  });
  return whole;
}

// A tile in registers.
template <Dims kDims, class T, int kLines, int kChunks>
__device__ const auto& read(const Fragment<kDims, T, kLines, kChunks>& tile) {
  return tile;
}
template <class Source>
__device__ auto read(const Lazy<Source>& tile) {
  return joined(tile, tile.source.chunk(0));
}

// take(c, chunk) for all chunks; what is computed for them is code once, not for each.
template <Dims kDims, class T, int kLines, int kChunks, class Take>
__device__ void for_each_chunk(const Fragment<kDims, T, kLines, kChunks>& tile, Take take) {
  unrolled<kChunks>([&](int c) { take(c, chunk_of(tile, c)); });
}
template <class Source, class Take>
__device__ void for_each_chunk(const Lazy<Source>& tile, Take take) {
#pragma unroll 1
  for (int c = 0; c < Source::kChunks; ++c) take(c, tile.source.chunk(c));
}

template <class Source, class = void>
constexpr int kStraightOf = Source::kChunks;
template <class Source>
constexpr int kStraightOf<Source, std::void_t<decltype(Source::kStraight)>> = Source::kStraight;

template <class Out, class Op, class... Operands>
struct ComputedSource;
template <class Out, class Op, class A>
struct ComputedSource<Out, Op, A> {
  static constexpr int kChunks = A::kChunks, kStraight = kStraightOf<A>;
  Lazy<A> a;
  __device__ auto chunk(int c) const { return map<Out, Op>(chunk_of(a, c)); }
};
template <class Out, class Op, class A, class B>
struct ComputedSource<Out, Op, A, B> {
  static constexpr int kChunks = A::kChunks, kStraight = kStraightOf<A>;
  Lazy<A> a;
  B b;
  __device__ auto chunk(int c) const { return map<Out, Op>(chunk_of(a, c), chunk_of(b, c)); }
};

template <class Out, class Op, class A>
__device__ auto map(const Lazy<A>& a) {
  return Lazy<ComputedSource<Out, Op, A>>{{a}};
}
template <class Out, class Op, class A, class B>
__device__ auto map(const Lazy<A>& a, const B& b) {
  return Lazy<ComputedSource<Out, Op, A, B>>{{a, b}};
}
template <class Out, class Op, Dims kDims, class T, int kLines, int kChunks, class B>
__device__ auto map(const Fragment<kDims, T, kLines, kChunks>& a, const Lazy<B>& b) {
  Fragment<kDims, Out, kLines, kChunks> result;
  unrolled<kChunks>([&](int c) {
    const auto one = map<Out, Op>(chunk_of(a, c), chunk_of(b, c));
    unrolled<kLines>([&](int i) { result.at[i][c] = one.at[i][0]; });
  });
  return result;
}

// By a number per line: one division for all its elements, to three units in the last place.
template <class Out, class A, template <class, int> class PerLine, class V, int kLines>
__device__ auto div(const Lazy<A>& a, const PerLine<V, kLines>& b) {
  return mul<Out>(a, over<float>([](V x) { return reciprocal(x); }, b));
}

// Of lines as they lie in shared memory: by tensor cores, which take fewer instructions.
template <class T, int kKeys, int kDepth, int kStraight>
__device__ auto line_sum(const Lazy<SharedSource<T, kKeys, kDepth, kStraight>>& lines) {
  Vec16<T> ones;
#pragma unroll
  for (auto& pair : ones.pairs) pair = from_floats<T>(make_float2(1.0f, 1.0f));
  KeyVector<float, kKeys> sums;
  Scores<float, kKeys, kTokenTile> halves[2] = {};  // two chains of products are half as long
  unrolled<kDepth / kChunkDepth>([&](int c) {
    const auto chunk = lines.source.chunk(c);
    unrolled<kKeys / kRowTile>([&](int k) {
      const Vec16<T> pair[2] = {chunk.at[2 * k][0], chunk.at[2 * k + 1][0]};
      unrolled<2>([&](int h) { mma<T>(halves[h].at[k][0], pair, ones, h); });
    });
  });
  unrolled<kKeys / kRowTile, 2>(
      [&](int k, int i) { sums.at[k][i] = halves[0].at[k][0][2 * i] + halves[1].at[k][0][2 * i]; });
  return sums;
}

template <class Source>
__device__ auto line_sum(const Lazy<Source>& tile) {
  auto sums = partial_sums(chunk_of(tile, 0));
#pragma unroll kStraightOf < Source>
  for (int c = 1; c < Source::kChunks; ++c) {
    const auto more = partial_sums(chunk_of(tile, c));
    unrolled<sums.kLines / kLineTile>([&](int i) { sums.at[i] += more.at[i]; });
  }
  return line_totals(sums);
}
template <class Source, class B>
__device__ auto line_sum(const Lazy<Source>& tile, const B& factor) {
  return line_sum(map<float, Mul>(tile, factor));
}

// scores[key, row] = sum over D of keys[key, :] * rows[row, :]
template <class Source, class T, int kRows, int kDepth>
__device__ auto scores_of(const Lazy<Source>& keys, ResidentRows<T, kRows, kDepth> rows) {
  constexpr int kLines = sizeof(decltype(keys.source.chunk(0))) / sizeof(Vec16<T>);
  // Products of one tile wait for each other: the chunks of few rows make two chains.
  constexpr int kChains = kRows > kTokenTile ? 1 : 2;
  Accum<kLines * kLineTile, kRows> sums[kChains];
#pragma unroll 8
  for (int c = 0; c < Source::kChunks; ++c) {
    contract(sums[c % kChains], chunk_of(keys, c), rows.chunk(c));
  }
  if constexpr (kChains > 1) {
    unrolled<kLines / 2, 4>([&](int i, int j) { sums[0].at[i][0][j] += sums[1].at[i][0][j]; });
  }
  return reinterpret_cast<const Scores<float, kLines * kLineTile, kRows>&>(sums[0]);
}
template <class Source, class T, int kRowLines, int kChunks>
__device__ auto scores_of(const Lazy<Source>& keys,
                          const Fragment<Dims::kTokensDepth, T, kRowLines, kChunks>& rows) {
  constexpr int kLines = sizeof(decltype(keys.source.chunk(0))) / sizeof(Vec16<T>);
  Accum<kLines * kLineTile, kRowLines * kLineTile> sums;
  unrolled<kChunks>([&](int c) { contract(sums, chunk_of(keys, c), chunk_of(rows, c)); });
  return reinterpret_cast<const Scores<float, kLines * kLineTile, kRowLines * kLineTile>&>(sums);
}

}  // namespace mirage::tile
